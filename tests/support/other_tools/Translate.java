import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.Heartbeat;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What a program sees that was written for MirrorMaker 2: BOOTSTRAP ALIAS GROUP. */
public class Translate {
    public static void main(String[] given) throws Exception {
        Map<String, Object> properties = Map.of("bootstrap.servers", given[0]);
        RemoteClusterUtils.translateOffsets(properties, given[1], given[2], Duration.ofSeconds(30))
            .forEach((at, offset) -> System.out.println("offset " + at + " " + offset.offset()));
        try (MirrorClient client = new MirrorClient(properties)) {
            System.out.println("checkpoints " + client.checkpointTopics());
            System.out.println("heartbeats " + client.heartbeatTopics());
        }
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", given[0],
            "key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading)) {
            TopicPartition heartbeats = new TopicPartition("heartbeats", 0);
            consumer.assign(java.util.List.of(heartbeats));
            consumer.seekToBeginning(java.util.List.of(heartbeats));
            consumer.poll(Duration.ofSeconds(30)).forEach(record -> {
                Heartbeat beat = Heartbeat.deserializeRecord(record);
                System.out.println("beat " + beat.sourceClusterAlias() + " " + beat.targetClusterAlias());
            });
        }
    }
}
