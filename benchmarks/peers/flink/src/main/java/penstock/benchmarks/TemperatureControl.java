package penstock.benchmarks;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.producer.ProducerRecord;
import penstock.examples.temperature_control.Messages.HeaterCommand;
import penstock.examples.temperature_control.Messages.HeaterControl;
import penstock.examples.temperature_control.Messages.SensorData;

/**
 * The temperature-control job of the example for Flink, Kafka to Kafka.
 *
 * <p>Arguments are NAME=VALUE: broker, readings, settings, heaters (topics), checkpoints (a folder); parallelism (2),
 * interval (of checkpoints, "5 s"), backend ("hashmap"), buffer-timeout and linger-ms (the defaults of Flink and of
 * Kafka's client).
 */
public final class TemperatureControl {
  private TemperatureControl() {}

  /** A temperature. Public fields make it a POJO, which Flink serialises without Kryo; so below. */
  public static class Reading {
    public int sensor;
    public double temperature;
  }

  /** What the owner of a room wants. */
  public static class Setting {
    public int sensor;
    public double desired;
    public double upDelta;
    public double downDelta;
  }

  /** What a heater is told. */
  public static class Command {
    public int sensor;
    public boolean off;
  }

  private static final class ReadingSchema extends AbstractDeserializationSchema<Reading> {
    @Override
    public Reading deserialize(byte[] bytes) throws IOException {
      SensorData message = SensorData.parseFrom(bytes);
      Reading reading = new Reading();
      reading.sensor = message.getSensorID();
      reading.temperature = message.getTemperature();
      return reading;
    }
  }

  private static final class SettingSchema extends AbstractDeserializationSchema<Setting> {
    @Override
    public Setting deserialize(byte[] bytes) throws IOException {
      var message = penstock.examples.temperature_control.Messages.TemperatureControl.parseFrom(bytes);
      Setting setting = new Setting();
      setting.sensor = message.getSensorID();
      setting.desired = message.getDesired();
      setting.upDelta = message.getUpDelta();
      setting.downDelta = message.getDownDelta();
      return setting;
    }
  }

  private static final class CommandSchema implements KafkaRecordSerializationSchema<Command> {
    private final String topic;

    CommandSchema(String topic) {
      this.topic = topic;
    }

    @Override
    public ProducerRecord<byte[], byte[]> serialize(Command command, KafkaSinkContext context, Long time) {
      HeaterCommand order = command.off ? HeaterCommand.Off : HeaterCommand.On;
      byte[] value = HeaterControl.newBuilder().setSensorID(command.sensor).setCommand(order).build().toByteArray();
      byte[] key = Integer.toString(command.sensor).getBytes(StandardCharsets.US_ASCII);
      return new ProducerRecord<>(topic, key, value);
    }
  }

  private static final class Thermostat extends KeyedCoProcessFunction<Integer, Reading, Setting, Command> {
    private transient ValueState<Setting> setting;
    private transient ValueState<Boolean> lastOff;

    @Override
    public void open(OpenContext context) {
      setting = getRuntimeContext().getState(new ValueStateDescriptor<>("setting", Setting.class));
      lastOff = getRuntimeContext().getState(new ValueStateDescriptor<>("last_command", Boolean.class));
    }

    @Override
    public void processElement1(Reading reading, Context context, Collector<Command> out) throws Exception {
      Setting wanted = setting.value();
      if (wanted == null) {
        return;
      }
      boolean tooWarm = reading.temperature > wanted.desired + wanted.upDelta;
      boolean tooCold = reading.temperature < wanted.desired - wanted.downDelta;
      if (!tooWarm && !tooCold) {
        return;
      }
      Boolean last = lastOff.value();
      if (last != null && last == tooWarm) {
        return;
      }
      lastOff.update(tooWarm);
      Command command = new Command();
      command.sensor = reading.sensor;
      command.off = tooWarm;
      out.collect(command);
    }

    @Override
    public void processElement2(Setting given, Context context, Collector<Command> out) throws Exception {
      setting.update(given);
    }
  }

  private static <T> KafkaSource<T> source(String broker, String topic, AbstractDeserializationSchema<T> schema) {
    return KafkaSource.<T>builder()
        .setBootstrapServers(broker)
        .setTopics(topic)
        .setGroupId("flink-" + topic)
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setValueOnlyDeserializer(schema)
        .build();
  }

  private static Configuration configuration(Map<String, String> given) {
    Configuration found = new Configuration();
    found.setString("state.backend.type", given.getOrDefault("backend", "hashmap"));
    found.setString("execution.checkpointing.interval", given.getOrDefault("interval", "5 s"));
    found.setString("execution.checkpointing.dir", Path.of(given.get("checkpoints")).toAbsolutePath().toUri().toString());
    found.setString("taskmanager.memory.managed.size", "512m");
    if (given.containsKey("buffer-timeout")) {
      found.setString("execution.buffer-timeout.interval", given.get("buffer-timeout"));
    }
    return found;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> given = new HashMap<>();
    for (String argument : arguments) {
      String[] parts = argument.split("=", 2);
      given.put(parts[0], parts[1]);
    }
    String broker = given.get("broker");
    int parallelism = Integer.parseInt(given.getOrDefault("parallelism", "2"));
    var environment = StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration(given));
    var none = WatermarkStrategy.<Reading>noWatermarks();
    var readings = environment.fromSource(source(broker, given.get("readings"), new ReadingSchema()), none, "readings");
    var settings =
        environment.fromSource(
            source(broker, given.get("settings"), new SettingSchema()), WatermarkStrategy.noWatermarks(), "settings");
    var sink =
        KafkaSink.<Command>builder()
            .setBootstrapServers(broker)
            .setRecordSerializer(new CommandSchema(given.get("heaters")))
            .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE);
    if (given.containsKey("linger-ms")) {
      sink.setProperty("linger.ms", given.get("linger-ms"));
    }
    readings
        .connect(settings)
        .keyBy(reading -> reading.sensor, setting -> setting.sensor)
        .process(new Thermostat())
        .sinkTo(sink.build());
    environment.execute("temperature-control");
  }
}
