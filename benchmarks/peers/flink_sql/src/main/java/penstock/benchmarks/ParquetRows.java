package penstock.benchmarks;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.parquet.ParquetReadOptions;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.column.ColumnReader;
import org.apache.parquet.column.impl.ColumnReadStoreImpl;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.conf.PlainParquetConfiguration;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.io.DelegatingSeekableInputStream;
import org.apache.parquet.io.InputFile;
import org.apache.parquet.io.LocalInputFile;
import org.apache.parquet.io.SeekableInputStream;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;

/** Reads Parquet files of BIGINT and DOUBLE columns without nulls, since Flink's own format is not always to be had. */
final class ParquetRows implements StreamFormat<RowData> {
    private static final long serialVersionUID = 1L;
    private final RowType type;

    ParquetRows(RowType type) {
        this.type = type;
    }

    /** Returns the type of the rows of a file. */
    static RowType typeOf(java.nio.file.Path path) throws IOException {
        try (ParquetFileReader reader = ParquetFileReader.open(new LocalInputFile(path), options())) {
            List<RowType.RowField> fields = new ArrayList<>();
            for (ColumnDescriptor column : reader.getFileMetaData().getSchema().getColumns()) {
                boolean isDouble = column.getPrimitiveType().getPrimitiveTypeName() == PrimitiveTypeName.DOUBLE;
                LogicalType type = isDouble ? new DoubleType(false) : new BigIntType(false);
                fields.add(new RowType.RowField(column.getPath()[0], type));
            }
            return new RowType(false, fields);
        }
    }

    private static ParquetReadOptions options() {
        return ParquetReadOptions.builder(new PlainParquetConfiguration()).build();
    }

    @Override
    public Reader<RowData> createReader(Configuration config, FSDataInputStream stream, long length, long end)
            throws IOException {
        return new RowReader(ParquetFileReader.open(new OpenFile(stream, length), options()));
    }

    @Override
    public Reader<RowData> restoreReader(
            Configuration config, FSDataInputStream stream, long restored, long length, long end) throws IOException {
        return createReader(config, stream, length, end);
    }

    @Override
    public boolean isSplittable() {
        return false;
    }

    @Override
    public TypeInformation<RowData> getProducedType() {
        return InternalTypeInfo.of(type);
    }

    private static final class RowReader implements Reader<RowData> {
        private final ParquetFileReader file;
        private final MessageType schema;
        private final boolean[] doubles;
        private ColumnReader[] columns;
        private long left;

        RowReader(ParquetFileReader file) {
            this.file = file;
            this.schema = file.getFileMetaData().getSchema();
            this.columns = new ColumnReader[schema.getColumns().size()];
            this.doubles = new boolean[columns.length];
            for (int i = 0; i < columns.length; i++) {
                doubles[i] = schema.getColumns().get(i).getPrimitiveType().getPrimitiveTypeName()
                        == PrimitiveTypeName.DOUBLE;
            }
        }

        @Override
        public RowData read() throws IOException {
            if (left == 0 && !next()) {
                return null;
            }
            left--;
            GenericRowData row = new GenericRowData(columns.length);
            for (int i = 0; i < columns.length; i++) {
                ColumnReader column = columns[i];
                row.setField(i, doubles[i] ? (Object) column.getDouble() : (Object) column.getLong());
                column.consume();
            }
            return row;
        }

        private boolean next() throws IOException {
            PageReadStore pages = file.readNextRowGroup();
            if (pages == null) {
                return false;
            }
            left = pages.getRowCount();
            ColumnReadStoreImpl store = new ColumnReadStoreImpl(
                    pages,
                    new GroupRecordConverter(schema).getRootConverter(),
                    schema,
                    file.getFileMetaData().getCreatedBy());
            for (int i = 0; i < columns.length; i++) {
                columns[i] = store.getColumnReader(schema.getColumns().get(i));
            }
            return true;
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }

    /** A stream of Flink as a file of Parquet's library. */
    private static final class OpenFile implements InputFile {
        private final FSDataInputStream stream;
        private final long length;

        OpenFile(FSDataInputStream stream, long length) {
            this.stream = stream;
            this.length = length;
        }

        @Override
        public long getLength() {
            return length;
        }

        @Override
        public SeekableInputStream newStream() {
            return new DelegatingSeekableInputStream(stream) {
                @Override
                public long getPos() throws IOException {
                    return stream.getPos();
                }

                @Override
                public void seek(long position) throws IOException {
                    stream.seek(position);
                }
            };
        }
    }
}
