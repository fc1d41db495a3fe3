import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Hands each record of one topic on to another, in transactions that commit the offsets, too. Each fourth transaction is
 * aborted and done again. It prints `in` when it may begin; SIGTERM ends it after the transaction that is open.
 */
public final class Transfer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (Reader file = Files.newBufferedReader(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Properties reading = new Properties();
        reading.put("bootstrap.servers", settings.getProperty("bootstrap.servers"));
        reading.put("group.id", settings.getProperty("group.id"));
        reading.put("group.protocol", settings.getProperty("group.protocol"));
        reading.put("isolation.level", "read_committed");
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("max.poll.records", "20");
        Properties writing = new Properties();
        writing.put("bootstrap.servers", settings.getProperty("bootstrap.servers"));
        writing.put("transactional.id", settings.getProperty("transactional.id"));
        writing.put("transaction.timeout.ms", "5000");
        KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        KafkaProducer<String, String> producer =
                new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        producer.initTransactions();
        consumer.subscribe(List.of(settings.getProperty("input")));
        System.out.println("in");
        try {
            for (int number = 1; ; number++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (!records.isEmpty()) {
                    hand(records, settings.getProperty("output"), consumer, producer, number % 4 == 0);
                }
            }
        } catch (WakeupException ended) {
            consumer.close();
            producer.close();
        }
    }

    private static void hand(
            ConsumerRecords<String, String> records,
            String output,
            KafkaConsumer<String, String> consumer,
            KafkaProducer<String, String> producer,
            boolean abort) {
        Map<TopicPartition, OffsetAndMetadata> first = new HashMap<>();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> record : records) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            first.putIfAbsent(partition, new OffsetAndMetadata(record.offset()));
            next.put(partition, new OffsetAndMetadata(record.offset() + 1));
            producer.send(new ProducerRecord<>(output, record.partition(), record.key(), record.value()));
        }
        producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
        if (abort) {
            producer.abortTransaction();
            first.forEach(consumer::seek);
        } else {
            producer.commitTransaction();
        }
    }
}
