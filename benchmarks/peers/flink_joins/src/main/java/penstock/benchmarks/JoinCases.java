package penstock.benchmarks;

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;

/**
 * Runs joins on files of records, and writes what Flink emits.
 *
 * <p>Arguments: a file of cases, and the file for the results. A case is a line of fields between tabs: its number, then
 * "sql" or "session", the files of both sides, and for "sql" statements between two semicolons, of which the last is a
 * query of the tables l and r; for "session" a gap in milliseconds, and both sides are co-grouped. A result is a line
 * with the number and the values of a row.
 */
public final class JoinCases {
    private JoinCases() {}

    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.local-time-zone", "UTC");
        try (PrintWriter out = new PrintWriter(args[1])) {
            for (String line : Files.readAllLines(Path.of(args[0]))) {
                String[] parts = line.split("\t");
                List<String> rows =
                        parts[1].equals("sql") ? query(env, tables, parts) : sessions(env, parts);
                for (String row : rows) {
                    out.println(parts[0] + "\t" + row);
                }
            }
        }
    }

    private static void table(
            StreamExecutionEnvironment env, StreamTableEnvironment tables, String name, String file)
            throws Exception {
        List<Row> rows = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(file))) {
            String[] values = line.split(",");
            Long value = values[1].equals("null") ? null : Long.valueOf(values[1]);
            rows.add(Row.of(values[0], value, Long.valueOf(values[2])));
        }
        DataStream<Row> stream =
                env.fromCollection(
                        rows,
                        Types.ROW_NAMED(
                                new String[] {"k", "v", "at_ms"}, Types.STRING, Types.LONG, Types.LONG));
        Schema schema =
                Schema.newBuilder()
                        .column("k", "STRING")
                        .column("v", "BIGINT")
                        .column("at_ms", "BIGINT")
                        .columnByExpression("ts", "TO_TIMESTAMP_LTZ(at_ms, 3)")
                        .watermark("ts", "ts - INTERVAL '0.200' SECOND")
                        .build();
        tables.dropTemporaryView(name);
        tables.createTemporaryView(name, stream, schema);
    }

    private static List<String> query(
            StreamExecutionEnvironment env, StreamTableEnvironment tables, String[] parts) throws Exception {
        table(env, tables, "l", parts[2]);
        table(env, tables, "r", parts[3]);
        String[] statements = parts[4].split(";;");
        for (int i = 0; i < statements.length - 1; i++) {
            tables.executeSql(statements[i]);
        }
        List<String> found = new ArrayList<>();
        try (CloseableIterator<Row> rows =
                tables.executeSql(statements[statements.length - 1]).collect()) {
            while (rows.hasNext()) {
                Row row = rows.next();
                List<String> values = new ArrayList<>();
                for (int i = 0; i < row.getArity(); i++) {
                    values.add(String.valueOf(row.getField(i)));
                }
                found.add(String.join("\t", values));
            }
        }
        return found;
    }

    private static DataStream<String> side(StreamExecutionEnvironment env, String file) throws Exception {
        WatermarkStrategy<String> times =
                WatermarkStrategy.<String>forMonotonousTimestamps()
                        .withTimestampAssigner((row, before) -> Long.parseLong(row.split(",")[2]));
        List<String> rows = new ArrayList<>(Files.readAllLines(Path.of(file)));
        rows.sort((a, b) -> Long.compare(time(a), time(b)));
        return env.fromData(String.class, rows.toArray(new String[0])).assignTimestampsAndWatermarks(times);
    }

    private static long time(String row) {
        return Long.parseLong(row.split(",")[2]);
    }

    private static List<String> sessions(StreamExecutionEnvironment env, String[] parts) throws Exception {
        DataStream<String> result =
                side(env, parts[2])
                        .coGroup(side(env, parts[3]))
                        .where(row -> row.split(",")[0])
                        .equalTo(row -> row.split(",")[0])
                        .window(
                                EventTimeSessionWindows.withGap(
                                        java.time.Duration.ofMillis(Long.parseLong(parts[4]))))
                        .apply(new Both());
        List<String> found = new ArrayList<>();
        try (CloseableIterator<String> rows = result.executeAndCollect()) {
            rows.forEachRemaining(found::add);
        }
        return found;
    }

    /** Writes the records of both sides of a window. */
    private static final class Both implements CoGroupFunction<String, String, String> {
        @Override
        public void coGroup(Iterable<String> left, Iterable<String> right, Collector<String> out) {
            out.collect(String.join(" ", left) + "\t" + String.join(" ", right));
        }
    }
}
