package penstock.benchmarks;

import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.types.Row;

/** The numbers that stand for a row: the kind of its change, and its values. */
final class RowOf {
    /** What stands for null. */
    static final long NULL = Long.MIN_VALUE;

    static final TypeInformation<long[]> TYPE = PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO;

    private RowOf() {}

    static long[] values(Row row) {
        long[] values = new long[row.getArity() + 1];
        values[0] = row.getKind().toByteValue();
        for (int i = 0; i < row.getArity(); i++) {
            values[i + 1] = value(row.getField(i));
        }
        return values;
    }

    private static long value(Object field) {
        if (field == null) {
            return NULL;
        }
        if (field instanceof Double) {
            return Double.doubleToRawLongBits((Double) field);
        }
        if (field instanceof Instant) {
            return ((Instant) field).toEpochMilli();
        }
        if (field instanceof LocalDateTime) {
            return ((LocalDateTime) field).toInstant(ZoneOffset.UTC).toEpochMilli();
        }
        return ((Number) field).longValue();
    }
}
