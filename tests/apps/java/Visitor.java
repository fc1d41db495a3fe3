import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes a number ten times a second to the topic's first partition, and reads the topic in a group. It prints `wrote
 * VALUE OFFSET` or `failed VALUE ERROR`, and `read VALUE OFFSET`; SIGTERM ends it once all is written and committed.
 */
public final class Visitor {
    private static volatile boolean ending;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        String topic = (String) settings.remove("topic");
        int first = Integer.parseInt((String) settings.remove("first"));
        String group = (String) settings.remove("group.id");
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        Thread reading = new Thread(() -> read(consumer, topic));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ending = true;
            consumer.wakeup();
            try {
                main.join();
                reading.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        reading.start();
        for (int number = first; !ending; number++) {
            String value = Integer.toString(number);
            producer.send(new ProducerRecord<>(topic, 0, null, value), (written, failure) -> System.out.println(
                    failure == null
                            ? "wrote " + value + " " + written.offset()
                            : "failed " + value + " " + failure.getClass().getSimpleName()));
            Thread.sleep(100);
        }
        producer.close();
    }

    private static void read(KafkaConsumer<String, String> consumer, String topic) {
        consumer.subscribe(List.of(topic));
        try (consumer) {
            while (!ending) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println("read " + record.value() + " " + record.offset());
                }
            }
        } catch (WakeupException ended) {
            // the block has committed what was read
        }
    }
}
