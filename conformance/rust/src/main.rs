//! One writer of one key-value key: a loop of get and compare-and-set, and the history of it on standard output.
//!
//! Flags and output are those of `conformance/lib/kv_writer.py`, which describes both.

use std::error::Error;
use std::io::{BufWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::kv::{EntryErrorKind, Store, UpdateErrorKind};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

type Fault = Box<dyn Error + Send + Sync>;

/// What the command line asks for.
struct Flags {
    server: String,
    bucket: String,
    key: String,
    client: String,
    from_ack: bool,
    /// Updates to make; 0 for as many as fit until standard input closes.
    count: u64,
    timeout: Duration,
}

/// One operation, in the line format of the history.
#[derive(Serialize)]
struct Operation<'a> {
    kind: &'static str,
    client: &'a str,
    key: &'a str,
    /// Nanoseconds of CLOCK_MONOTONIC.
    invoked: i64,
    returned: i64,
    outcome: &'static str,
    expected: u64,
    revision: u64,
    value: String,
    error: String,
}

fn flags() -> Result<Flags, Fault> {
    use lexopt::prelude::{Long, ValueExt};
    let mut flags = Flags {
        server: String::new(),
        bucket: String::new(),
        key: String::new(),
        client: String::new(),
        from_ack: false,
        count: 0,
        timeout: Duration::from_secs(2),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(flag) = parser.next()? {
        match flag {
            Long("server") => flags.server = parser.value()?.parse()?,
            Long("bucket") => flags.bucket = parser.value()?.parse()?,
            Long("key") => flags.key = parser.value()?.parse()?,
            Long("client") => flags.client = parser.value()?.parse()?,
            Long("mode") => {
                flags.from_ack = match parser.value()?.string()?.as_str() {
                    "get" => false,
                    "ack" => true,
                    other => return Err(format!("--mode {other}: get or ack").into()),
                }
            }
            Long("count") => flags.count = parser.value()?.parse()?,
            Long("timeout-ms") => flags.timeout = Duration::from_millis(parser.value()?.parse()?),
            _ => return Err(flag.unexpected().into()),
        }
    }
    Ok(flags)
}

fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// True once standard input has closed.
fn stop_signal() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    stop
}

/// An error with its causes in one line: the code of the server's answer is in the innermost.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

/// The sequence that a refusal names, 0 if it names none.
fn named_sequence(text: &str) -> u64 {
    let tail = text.rsplit("wrong last sequence: ").next().unwrap_or_default();
    tail.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default().parse().unwrap_or(0)
}

struct Writer<'a, W: Write> {
    flags: &'a Flags,
    store: Store,
    out: W,
    number: u64,
}

impl<W: Write> Writer<'_, W> {
    fn report(&mut self, operation: &Operation<'_>) -> Result<(), Fault> {
        serde_json::to_writer(&mut self.out, operation)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    /// The revision that a get answers (0: no such key), or `None` if there was no answer.
    async fn get(&mut self) -> Result<Option<u64>, Fault> {
        let invoked = now();
        let answer = self.store.entry(self.flags.key.as_str()).await;
        let returned = now();
        let (outcome, revision, value, error) = match answer {
            Ok(Some(entry)) => ("ok", entry.revision, String::from_utf8_lossy(&entry.value).into_owned(), String::new()),
            Ok(None) => ("ok", 0, String::new(), String::new()),
            Err(error) if error.kind() == EntryErrorKind::TimedOut => ("unknown", 0, String::new(), "timeout".to_owned()),
            Err(error) => ("unknown", 0, String::new(), kind_of(&chain(&error))),
        };
        let flags = self.flags;
        self.report(&Operation {
            kind: "get",
            client: &flags.client,
            key: &flags.key,
            invoked,
            returned,
            outcome,
            expected: 0,
            revision,
            value,
            error,
        })?;
        Ok((outcome == "ok").then_some(revision))
    }

    /// The new revision, or `None` if the update was refused or got no answer.
    async fn compare_and_set(&mut self, expected: u64) -> Result<Option<u64>, Fault> {
        self.number += 1;
        let flags = self.flags;
        let value = format!("{}:{}", flags.client, self.number);
        let invoked = now();
        let answer = self.store.update(&flags.key, value.clone().into(), expected).await;
        let returned = now();
        let (outcome, revision, error) = match answer {
            Ok(revision) => ("ok", revision, String::new()),
            Err(error) => {
                let text = chain(&error);
                match error.kind() {
                    UpdateErrorKind::WrongLastRevision => ("conflict", named_sequence(&text), "10071".to_owned()),
                    UpdateErrorKind::TimedOut => ("unknown", 0, "timeout".to_owned()),
                    _ if text.contains("10164") => ("conflict", 0, "10164".to_owned()),
                    _ => ("unknown", 0, kind_of(&text)),
                }
            }
        };
        self.report(&Operation {
            kind: "cas",
            client: &flags.client,
            key: &flags.key,
            invoked,
            returned,
            outcome,
            expected,
            revision,
            value,
            error,
        })?;
        Ok((outcome == "ok").then_some(revision))
    }

    async fn run(&mut self, stop: &AtomicBool) -> Result<(), Fault> {
        let mut known = None;
        let mut done = 0;
        while self.flags.count == 0 || done < self.flags.count {
            let ending = stop.load(Ordering::Relaxed);
            if ending && self.flags.count > 0 {
                break;
            }
            let expected = match known.take() {
                Some(revision) => Some(revision),
                None => self.get().await?,
            };
            let updated = match expected {
                Some(revision) => self.compare_and_set(revision).await?,
                None => None,
            };
            match updated {
                Some(revision) => {
                    done += 1;
                    if done == 1 {
                        writeln!(self.out, "ready")?;
                        self.out.flush()?;
                    }
                    if ending {
                        break;
                    }
                    known = self.flags.from_ack.then_some(revision);
                }
                // Without an answer the next try would only fill the history with the same.
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        self.out.flush()?;
        Ok(())
    }
}

/// The kinds of outcome that scenarios tell apart; anything else stays as it is.
fn kind_of(text: &str) -> String {
    let lower = text.to_lowercase();
    if lower.contains("no responders") || lower.contains("no stream found") {
        "no responders".to_owned()
    } else if lower.contains("timed out") {
        "timeout".to_owned()
    } else if lower.contains("broken pipe") {
        "disconnected".to_owned()
    } else {
        text.to_owned()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Fault> {
    let flags = flags()?;
    let client = async_nats::ConnectOptions::new()
        .ignore_discovered_servers()
        .connection_timeout(Duration::from_secs(2))
        .request_timeout(Some(flags.timeout))
        .reconnect_delay_callback(|_| Duration::from_millis(50))
        .connect(flags.server.as_str())
        .await?;
    let mut context = async_nats::jetstream::new(client);
    context.set_timeout(flags.timeout);
    let store = context.get_key_value(flags.bucket.as_str()).await?;
    let stop = stop_signal();
    let out = BufWriter::new(std::io::stdout().lock());
    Writer { flags: &flags, store, out, number: 0 }.run(&stop).await
}
