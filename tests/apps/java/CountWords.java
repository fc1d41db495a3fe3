import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * A Kafka Streams application with a repartition topic and state stores on disk: each word, with how often it has been
 * read so far, each time it is read; and the same by windows of two seconds, as `word@start`, into another topic. It
 * prints its states, how many records it restores, and where its standbys begin to follow; SIGTERM closes it.
 */
public final class CountWords {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words = builder.stream(
                        settings.getProperty("input"), Consumed.with(text, text))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", text, text));
        words.count(
                        Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(String::valueOf)
                .to(settings.getProperty("output"), Produced.with(text, text));
        // no record is too late for its window
        words.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(2), Duration.ofHours(1)))
                .count(
                        Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("windows")
                                .withKeySerde(text)
                                .withValueSerde(Serdes.Long()))
                .toStream((window, count) -> window.key() + "@" + window.window().start())
                .mapValues(String::valueOf)
                .to(settings.getProperty("windows"), Produced.with(text, text));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setGlobalStateRestoreListener(new Restored());
        streams.setStandbyUpdateListener(new Followed());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
    }

    private static final class Restored implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            System.out.println("restores " + partition.partition() + " from " + start + " to " + end);
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long count) {
            System.out.println("restored " + partition.partition() + " records " + count);
        }
    }

    private static final class Followed implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition partition, String store, long start) {
            System.out.println("follows " + store + " " + partition.partition() + " from " + start);
        }

        @Override
        public void onBatchLoaded(
                TopicPartition partition, String store, TaskId task, long end, long count, long current) {}

        @Override
        public void onUpdateSuspended(
                TopicPartition partition, String store, long offset, long current, SuspendReason reason) {}
    }
}
