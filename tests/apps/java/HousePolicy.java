import java.util.Map;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** What managed services allow: batches of at most 8 MB, no retention above 30 days or below 1 MB, and no change to times of brokers. */
public final class HousePolicy {
    private static final long BATCH = 8_000_000, RETENTION_MS = 30L * 86_400_000, LEAST_BYTES = 1 << 20, LAG_MS = 129_600_000;

    private HousePolicy() {}

    /** Brokers load what is named as an agent as they load their own classes. */
    public static void premain(String options) {}

    private static void check(Map<String, String> settings) {
        limit(settings, TopicConfig.MAX_MESSAGE_BYTES_CONFIG, BATCH);
        limit(settings, TopicConfig.RETENTION_MS_CONFIG, RETENTION_MS);
        limit(settings, TopicConfig.MIN_COMPACTION_LAG_MS_CONFIG, LAG_MS);
        String bytes = settings.get(TopicConfig.RETENTION_BYTES_CONFIG);
        if (bytes != null && Long.parseLong(bytes) >= 0 && Long.parseLong(bytes) < LEAST_BYTES) {
            throw new PolicyViolationException("retention.bytes is at least " + LEAST_BYTES);
        }
    }

    private static void checkTimes(Map<String, String> settings) {
        if ("LogAppendTime".equals(settings.get(TopicConfig.MESSAGE_TIMESTAMP_TYPE_CONFIG))) {
            throw new PolicyViolationException("times are those of producers");
        }
    }

    private static void limit(Map<String, String> settings, String key, long most) {
        String value = settings.get(key);
        if (value != null && (Long.parseLong(value) < 0 || Long.parseLong(value) > most)) {
            throw new PolicyViolationException(key + " may be at most " + most);
        }
    }

    public static final class Create implements CreateTopicPolicy {
        @Override public void configure(Map<String, ?> settings) {}
        @Override public void validate(RequestMetadata asked) { check(asked.configs()); }
        @Override public void close() {}
    }

    public static final class Alter implements AlterConfigPolicy {
        @Override public void configure(Map<String, ?> settings) {}
        @Override public void validate(RequestMetadata asked) {
            check(asked.configs());
            // with KRaft it is asked of new topics, too
            if (!asked.resource().name().contains("kmirror")) checkTimes(asked.configs());
        }
        @Override public void close() {}
    }
}
