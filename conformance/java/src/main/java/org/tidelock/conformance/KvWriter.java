package org.tidelock.conformance;

import io.nats.client.Connection;
import io.nats.client.ErrorListener;
import io.nats.client.JetStreamApiException;
import io.nats.client.JetStreamOptions;
import io.nats.client.KeyValue;
import io.nats.client.KeyValueOptions;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.api.KeyValueEntry;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * One writer of one key-value key: a loop of get and compare-and-set, and the history of it on standard output.
 *
 * <p>Flags and output are those of {@code conformance/lib/kv_writer.py}, which describes both.
 */
public final class KvWriter {
    private static final int WRONG_LAST_SEQUENCE = 10071;
    private static final int WRONG_LAST_SEQUENCE_CONSTANT = 10164;
    private static final Pattern NAMED_SEQUENCE = Pattern.compile("wrong last sequence: (\\d+)");

    private final KeyValue store;
    private final String key;
    private final String client;
    private final PrintStream out;
    private long number;

    private KvWriter(KeyValue store, String key, String client, PrintStream out) {
        this.store = store;
        this.key = key;
        this.client = client;
        this.out = out;
    }

    /** Revision of the key (0: no such key), or -1 if there was no answer. */
    private long get() {
        long invoked = System.nanoTime();
        try {
            KeyValueEntry entry = store.get(key);
            long returned = System.nanoTime();
            long revision = entry == null ? 0 : entry.getRevision();
            report("get", invoked, returned, "ok", 0, revision, entry == null ? "" : entry.getValueAsString(), "");
            return revision;
        } catch (IOException | JetStreamApiException | RuntimeException why) {
            report("get", invoked, System.nanoTime(), "unknown", 0, 0, "", kindOf(why));
            return -1;
        }
    }

    /** The new revision, or -1 if the update was refused or got no answer. */
    private long compareAndSet(long expected) {
        String value = client + ":" + ++number;
        byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
        long invoked = System.nanoTime();
        try {
            long revision = store.update(key, bytes, expected);
            report("cas", invoked, System.nanoTime(), "ok", expected, revision, value, "");
            return revision;
        } catch (JetStreamApiException why) {
            long returned = System.nanoTime();
            int code = why.getApiErrorCode();
            boolean conflict = code == WRONG_LAST_SEQUENCE || code == WRONG_LAST_SEQUENCE_CONSTANT;
            String error = conflict ? Integer.toString(code) : kindOf(why);
            long named = conflict ? namedSequence(why.getErrorDescription()) : 0;
            report("cas", invoked, returned, conflict ? "conflict" : "unknown", expected, named, value, error);
            return -1;
        } catch (IOException | RuntimeException why) {
            report("cas", invoked, System.nanoTime(), "unknown", expected, 0, value, kindOf(why));
            return -1;
        }
    }

    private void report(
            String kind, long invoked, long returned, String outcome, long expected, long revision, String value, String error) {
        out.printf(
                Locale.ROOT,
                "{\"kind\":\"%s\",\"client\":\"%s\",\"key\":\"%s\",\"invoked\":%d,\"returned\":%d,\"outcome\":\"%s\","
                        + "\"expected\":%d,\"revision\":%d,\"value\":\"%s\",\"error\":\"%s\"}%n",
                kind, client, key, invoked, returned, outcome, expected, revision, value, error.replaceAll("[\"\\\\\\p{Cntrl}]", " "));
    }

    private static long namedSequence(String description) {
        Matcher found = NAMED_SEQUENCE.matcher(description);
        return found.find() ? Long.parseLong(found.group(1)) : 0;
    }

    /** The kinds of outcome that scenarios tell apart; anything else stays as it is. */
    private static String kindOf(Exception why) {
        String text = String.valueOf(why.getMessage());
        String lower = text.toLowerCase(Locale.ROOT);
        if (lower.contains("no responders") || lower.contains("503")) {
            return "no responders";
        }
        if (lower.contains("timeout")) {
            return "timeout";
        }
        return lower.contains("connection") ? "disconnected" : why.getClass().getSimpleName() + ": " + text;
    }

    private void run(boolean fromAck, long count, Thread stopped) throws InterruptedException {
        long known = -1;
        long done = 0;
        while (count == 0 || done < count) {
            boolean ending = !stopped.isAlive();
            if (ending && count > 0) {
                break;
            }
            long expected = known >= 0 ? known : get();
            long revision = expected >= 0 ? compareAndSet(expected) : -1;
            if (revision >= 0) {
                if (done++ == 0) {
                    out.println("ready");
                    out.flush();
                }
                if (ending) {
                    break;
                }
            } else {
                // Without an answer the next try would only fill the history with the same.
                Thread.sleep(20);
            }
            known = fromAck ? revision : -1;
        }
        out.flush();
    }

    /** A thread that lives until standard input closes. */
    private static Thread stopSignal() {
        Thread thread = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException closed) {
                return;
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static Map<String, String> flags(String[] args) {
        Map<String, String> flags = new HashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) {
            flags.put(args[i].replaceFirst("^--", ""), args[i + 1]);
        }
        return flags;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> flags = flags(args);
        Duration timeout = Duration.ofMillis(Long.parseLong(flags.getOrDefault("timeout-ms", "2000")));
        Options options = new Options.Builder()
                .server(flags.get("server"))
                .ignoreDiscoveredServers()
                .maxReconnects(-1)
                .reconnectWait(Duration.ofMillis(50))
                .reconnectJitter(Duration.ofMillis(10))
                .connectionTimeout(Duration.ofSeconds(2))
                .errorListener(new ErrorListener() {})
                .build();
        KeyValueOptions storeOptions = new KeyValueOptions.Builder()
                .jetStreamOptions(new JetStreamOptions.Builder().requestTimeout(timeout).build())
                .build();
        try (Connection connection = Nats.connect(options)) {
            KeyValue store = connection.keyValue(flags.get("bucket"), storeOptions);
            PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.UTF_8);
            boolean fromAck = "ack".equals(flags.get("mode"));
            long count = Long.parseLong(flags.getOrDefault("count", "0"));
            new KvWriter(store, flags.get("key"), flags.get("client"), out).run(fromAck, count, stopSignal());
        }
    }
}
