package penstock.benchmarks;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.LogicalTypeRoot;
import org.apache.flink.table.types.logical.RowType;

/**
 * Runs a query of Flink SQL in streaming mode, until its bounded input has ended, with state on the heap.
 *
 * <p>Arguments: a file with the query; the parallelism; a folder for checkpoints; a folder for the results; "rows" or
 * "changes"; then for each table its name, folder, time column, watermark delay in seconds and primary key, or "-".
 * Results are numbers of 8 bytes: the kind of the change, as Flink numbers it, and the values of the row.
 */
public final class SqlStatements {
    private SqlStatements() {}

    public static void main(String[] args) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("execution.checkpointing.interval", "10 s");
        configuration.setString("execution.checkpointing.dir", "file://" + args[2]);
        configuration.setString("pipeline.object-reuse", "true");
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(Integer.parseInt(args[1]));
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.local-time-zone", "UTC");
        for (int i = 5; i < args.length; i += 5) {
            declare(env, tables, List.of(args).subList(i, i + 5));
        }
        Table result = tables.sqlQuery(Files.readString(Path.of(args[0])));
        DataType type = result.getResolvedSchema().toSourceRowDataType().bridgedTo(RowData.class);
        if (args[4].equals("rows")) {
            DataStream<RowData> rows = tables.toDataStream(result, type);
            rows.sinkTo(new Results(args[3], (RowType) type.getLogicalType()));
        } else {
            DataStream<long[]> changes = tables.toChangelogStream(result).map(RowOf::values).returns(RowOf.TYPE);
            changes.sinkTo(new Changes(args[3]));
        }
        env.execute();
    }

    private static void declare(StreamExecutionEnvironment env, StreamTableEnvironment tables, List<String> given)
            throws Exception {
        Path folder = Path.of(given.get(1));
        RowType type;
        try (DirectoryStream<Path> files = Files.newDirectoryStream(folder, "*.parquet")) {
            type = ParquetRows.typeOf(files.iterator().next());
        }
        FileSource<RowData> source = FileSource.forRecordStreamFormat(
                        new ParquetRows(type), new org.apache.flink.core.fs.Path(folder.toUri()))
                .build();
        DataStream<RowData> stream = env.fromSource(source, WatermarkStrategy.noWatermarks(), given.get(0));
        Schema.Builder schema = Schema.newBuilder();
        for (RowType.RowField field : type.getFields()) {
            schema.column(field.getName(), field.getType().asSerializableString());
        }
        schema.columnByExpression("ts", "TO_TIMESTAMP_LTZ(" + given.get(2) + ", 3)")
                .watermark("ts", "ts - INTERVAL '" + given.get(3) + "' SECOND");
        if (!given.get(4).equals("-")) {
            schema.primaryKey(given.get(4));
        }
        tables.createTemporaryView(given.get(0), stream, schema.build());
    }

    /** Writes rows that are only inserted. */
    private static final class Results implements Sink<RowData> {
        private static final long serialVersionUID = 1L;
        private final String folder;
        private final RowType type;

        Results(String folder, RowType type) {
            this.folder = folder;
            this.type = type;
        }

        @Override
        public SinkWriter<RowData> createWriter(WriterInitContext context) throws IOException {
            DataOutputStream out = open(folder, context);
            List<LogicalType> types = type.getChildren();
            return new Written<RowData>(out) {
                @Override
                public void write(RowData row, Context context) throws IOException {
                    out.writeLong(row.getRowKind().toByteValue());
                    for (int i = 0; i < types.size(); i++) {
                        LogicalTypeRoot root = types.get(i).getTypeRoot();
                        if (row.isNullAt(i)) {
                            out.writeLong(RowOf.NULL);
                        } else if (root == LogicalTypeRoot.DOUBLE) {
                            out.writeDouble(row.getDouble(i));
                        } else if (root == LogicalTypeRoot.BIGINT) {
                            out.writeLong(row.getLong(i));
                        } else {
                            out.writeLong(row.getTimestamp(i, 3).getMillisecond());
                        }
                    }
                }
            };
        }
    }

    /** Writes the changes of rows. */
    private static final class Changes implements Sink<long[]> {
        private static final long serialVersionUID = 1L;
        private final String folder;

        Changes(String folder) {
            this.folder = folder;
        }

        @Override
        public SinkWriter<long[]> createWriter(WriterInitContext context) throws IOException {
            DataOutputStream out = open(folder, context);
            return new Written<long[]>(out) {
                @Override
                public void write(long[] values, Context context) throws IOException {
                    for (long value : values) {
                        out.writeLong(value);
                    }
                }
            };
        }
    }

    private static DataOutputStream open(String folder, WriterInitContext context) throws IOException {
        Path path = Path.of(folder, context.getTaskInfo().getIndexOfThisSubtask() + ".bin");
        return new DataOutputStream(new BufferedOutputStream(new FileOutputStream(path.toFile()), 1 << 16));
    }

    /** A writer to an open file. */
    private abstract static class Written<T> implements SinkWriter<T> {
        private final DataOutputStream out;

        Written(DataOutputStream out) {
            this.out = out;
        }

        @Override
        public void flush(boolean endOfInput) throws IOException {
            out.flush();
        }

        @Override
        public void close() throws IOException {
            out.close();
        }
    }
}
