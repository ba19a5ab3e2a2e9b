package penstock.benchmarks;

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs queries on files of changes, and writes what Flink emits.
 *
 * <p>Arguments: a file of cases, and the file for the results. A case is a line of fields between tabs: its number,
 * "changes" or "rows", the file, and a query of the table c. A line of the file has a kind, k, v and at_ms. A result is
 * a line with the number, the kind of a change, and the values of a row.
 */
public final class TableCases {
    private TableCases() {}

    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.local-time-zone", "UTC");
        try (PrintWriter out = new PrintWriter(args[1])) {
            for (String line : Files.readAllLines(Path.of(args[0]))) {
                String[] parts = line.split("\t");
                declare(env, tables, parts[1].equals("changes"), parts[2]);
                try (CloseableIterator<Row> rows = tables.executeSql(parts[3]).collect()) {
                    while (rows.hasNext()) {
                        Row row = rows.next();
                        List<String> values = new ArrayList<>();
                        for (int i = 0; i < row.getArity(); i++) {
                            values.add(String.valueOf(row.getField(i)));
                        }
                        out.println(parts[0] + "\t" + row.getKind().shortString() + "\t" + String.join("\t", values));
                    }
                }
            }
        }
    }

    private static void declare(
            StreamExecutionEnvironment env, StreamTableEnvironment tables, boolean changes, String file)
            throws Exception {
        List<Row> rows = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            String[] values = line.split(",");
            Long value = values[2].equals("null") ? null : Long.valueOf(values[2]);
            rows.add(Row.ofKind(kind(values[0]), values[1], value, Long.valueOf(values[3])));
        }
        TypeInformation<Row> type =
                Types.ROW_NAMED(new String[] {"k", "v", "at_ms"}, Types.STRING, Types.LONG, Types.LONG);
        DataStream<Row> stream = env.fromCollection(rows, type);
        Schema.Builder schema =
                Schema.newBuilder().column("k", "STRING").column("v", "BIGINT").column("at_ms", "BIGINT");
        tables.dropTemporaryView("c");
        if (changes) {
            tables.createTemporaryView("c", tables.fromChangelogStream(stream, schema.build()));
            return;
        }
        schema.columnByExpression("ts", "TO_TIMESTAMP_LTZ(at_ms, 3)")
                .watermark("ts", "ts - INTERVAL '1' SECOND");
        tables.createTemporaryView("c", stream, schema.build());
    }

    private static RowKind kind(String text) {
        for (RowKind kind : RowKind.values()) {
            if (kind.shortString().equals(text)) {
                return kind;
            }
        }
        throw new IllegalArgumentException(text);
    }
}
