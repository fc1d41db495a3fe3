import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Keeps the segments of tiered topics in a folder that all brokers of a sandbox cluster share.
 *
 * <p>Before each operation it reads control.properties in its folder, if that exists: {@code read.ms} and
 * {@code index.ms} delay reads of segments and of indexes, {@code fails=true} makes reads fail, {@code away=true}
 * everything. If operations.log exists there, each operation appends a line to it when it begins.
 */
public final class FolderStore implements RemoteStorageManager {
    private Path folder;

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of((String) configs.get("folder"));
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        begin("COPY", segment, null);
        try {
            Files.createDirectories(partition(segment));
            copy(data.offsetIndex(), file(segment, IndexType.OFFSET));
            copy(data.timeIndex(), file(segment, IndexType.TIMESTAMP));
            copy(data.producerSnapshotIndex(), file(segment, IndexType.PRODUCER_SNAPSHOT));
            if (data.transactionIndex().isPresent()) {
                copy(data.transactionIndex().get(), file(segment, IndexType.TRANSACTION));
            }
            ByteBuffer epochs = data.leaderEpochIndex();
            byte[] bytes = new byte[epochs.remaining()];
            epochs.duplicate().get(bytes);
            Files.write(file(segment, IndexType.LEADER_EPOCH), bytes);
            copy(data.logSegment(), file(segment, "log"));
        } catch (IOException error) {
            throw new RemoteStorageException("cannot copy " + segment, error);
        }
        return Optional.empty();
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int last)
            throws RemoteStorageException {
        begin("READ", segment, "read.ms");
        Path file = file(segment, "log");
        try {
            FileInputStream stream = new FileInputStream(file.toFile());
            try {
                stream.skipNBytes(start);
            } catch (IOException error) {
                stream.close();
                throw error;
            }
            return last == Integer.MAX_VALUE ? stream : new Limited(stream, (long) last - start + 1);
        } catch (IOException error) {
            throw new RemoteResourceNotFoundException("cannot read " + file, error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        begin("INDEX", segment, "index.ms");
        Path file = file(segment, type);
        try {
            return Files.newInputStream(file);
        } catch (IOException error) {
            throw new RemoteResourceNotFoundException("cannot read " + file, error);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        begin("DELETE", segment, null);
        try {
            for (IndexType type : IndexType.values()) {
                Files.deleteIfExists(file(segment, type));
            }
            Files.deleteIfExists(file(segment, "log"));
        } catch (IOException error) {
            throw new RemoteStorageException("cannot delete " + segment, error);
        }
    }

    @Override
    public void close() {}

    private void begin(String operation, RemoteLogSegmentMetadata segment, String delay) throws RemoteStorageException {
        Properties control = new Properties();
        try {
            Path log = folder.resolve("operations.log");
            if (Files.exists(log)) {
                TopicIdPartition partition = segment.topicIdPartition();
                String line = operation + " " + partition.topicPartition() + " " + segment.startOffset() + "\n";
                Files.writeString(log, line, StandardOpenOption.APPEND);
            }
            try (InputStream text = Files.newInputStream(folder.resolve("control.properties"))) {
                control.load(text);
            } catch (NoSuchFileException none) {
                return;
            }
            Thread.sleep(delay == null ? 0 : Long.parseLong(control.getProperty(delay, "0").strip()));
        } catch (IOException | IllegalArgumentException error) {
            throw new RemoteStorageException("cannot use the store in " + folder, error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new RemoteStorageException("a read of the store was cancelled", error);
        }
        if (isOn(control, "away") || (delay != null && isOn(control, "fails"))) {
            throw new RemoteStorageException("the store in " + folder + " fails, as control.properties there says");
        }
    }

    private static boolean isOn(Properties control, String key) {
        return Boolean.parseBoolean(control.getProperty(key, "").strip());
    }

    private static void copy(Path from, Path to) throws IOException {
        Files.copy(from, to, StandardCopyOption.REPLACE_EXISTING);
    }

    private Path partition(RemoteLogSegmentMetadata segment) {
        TopicIdPartition partition = segment.topicIdPartition();
        return folder.resolve("segments").resolve(partition.topicId() + "-" + partition.partition());
    }

    private Path file(RemoteLogSegmentMetadata segment, IndexType type) {
        return file(segment, type.name().toLowerCase(Locale.ROOT));
    }

    private Path file(RemoteLogSegmentMetadata segment, String kind) {
        String name = String.format("%020d-%s.%s", segment.startOffset(), segment.remoteLogSegmentId().id(), kind);
        return partition(segment).resolve(name);
    }

    /** The first bytes of a stream. */
    private static final class Limited extends InputStream {
        private final InputStream stream;
        private long left;

        Limited(InputStream stream, long left) {
            this.stream = stream;
            this.left = left;
        }

        @Override
        public int read() throws IOException {
            if (left <= 0) {
                return -1;
            }
            int found = stream.read();
            left -= found < 0 ? left : 1;
            return found;
        }

        @Override
        public int read(byte[] bytes, int at, int count) throws IOException {
            if (left <= 0 && count > 0) {
                return -1;
            }
            int found = stream.read(bytes, at, (int) Math.min(count, left));
            left -= Math.max(found, 0);
            return found;
        }

        @Override
        public void close() throws IOException {
            stream.close();
        }
    }
}
