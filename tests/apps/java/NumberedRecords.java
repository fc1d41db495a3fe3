import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes numbered records at a steady rate, and reads them in a group. Prints a JSON line for each acknowledged write,
 * each read, each error and each new client. It sends again what was refused, and replaces a client that has failed for
 * good, as a service manager would restart the application. SIGTERM ends it.
 */
public final class NumberedRecords {
    private static final AtomicBoolean ended = new AtomicBoolean();

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        String topic = (String) settings.remove("numbered.topic");
        int partitions = Integer.parseInt((String) settings.remove("numbered.partitions"));
        int rate = Integer.parseInt((String) settings.remove("numbered.rate"));
        String group = (String) settings.remove("numbered.group");
        Thread writer = new Thread(() -> write(settings, topic, partitions, rate));
        Thread reader = new Thread(() -> read(settings, topic, group));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> ended.set(true)));
        writer.start();
        reader.start();
    }

    private static void write(Properties settings, String topic, int partitions, int rate) {
        Properties own = new Properties();
        own.putAll(settings);
        own.put("acks", "all");
        Queue<Long> again = new ConcurrentLinkedQueue<>();
        long next = 0;
        while (!ended.get()) {
            AtomicBoolean failed = new AtomicBoolean();
            print("started", "writer", "");
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(own, new StringSerializer(), new StringSerializer())) {
                long began = System.nanoTime();
                for (long sent = 1; !ended.get() && !failed.get(); sent++) {
                    Long refused = again.poll();
                    long number = refused == null ? next++ : refused;
                    int partition = (int) (number % partitions);
                    String text = Long.toString(number);
                    try {
                        producer.send(new ProducerRecord<>(topic, partition, text, text), (place, error) -> {
                            if (error == null) {
                                printRecord("acknowledged", number, partition, place.offset());
                            } else {
                                again.add(number);
                                printError("writer", error);
                            }
                        });
                    } catch (KafkaException error) {
                        again.add(number);
                        printError("writer", error);
                        failed.set(true);
                    }
                    pause(began + sent * 1_000_000_000L / rate - System.nanoTime());
                }
            } catch (KafkaException error) {
                printError("writer", error);
            }
            pause(1_000_000_000L);
        }
    }

    private static void read(Properties settings, String topic, String group) {
        Properties own = new Properties();
        own.putAll(settings);
        own.put("group.id", group);
        own.put("enable.auto.commit", "false");
        own.put("auto.offset.reset", "earliest");
        while (!ended.get()) {
            print("started", "reader", "");
            try (KafkaConsumer<String, String> consumer =
                    new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(List.of(topic));
                while (!ended.get()) {
                    ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                    for (ConsumerRecord<String, String> record : records) {
                        printRecord("read", Long.parseLong(record.value()), record.partition(), record.offset());
                    }
                    if (!records.isEmpty()) {
                        consumer.commitAsync((offsets, error) -> {
                            if (error != null) {
                                printError("reader", error);
                            }
                        });
                    }
                }
            } catch (WakeupException stopped) {
                return;
            } catch (KafkaException error) {
                printError("reader", error);
            }
            pause(1_000_000_000L);
        }
    }

    private static void pause(long nanoseconds) {
        if (nanoseconds > 0) {
            try {
                Thread.sleep(nanoseconds / 1_000_000L, (int) (nanoseconds % 1_000_000L));
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static void printRecord(String what, long number, int partition, long offset) {
        line(String.format("\"what\":\"%s\",\"number\":%d,\"partition\":%d,\"offset\":%d", what, number, partition, offset));
    }

    private static void printError(String side, Exception error) {
        print("error", side, error.getClass().getSimpleName() + ": " + error.getMessage());
    }

    private static void print(String what, String side, String text) {
        String quoted = text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ");
        line(String.format("\"what\":\"%s\",\"side\":\"%s\",\"text\":\"%s\"", what, side, quoted));
    }

    private static void line(String fields) {
        System.out.println("{\"at\":" + System.currentTimeMillis() + "," + fields + "}");
    }
}
