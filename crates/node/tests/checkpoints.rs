//! What checkpoints cost, and that a crash at any step of one loses nothing: see `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{CheckpointWrite, Client, Net};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::AccountId;
use tidelock_node::Budgets;
use tidelock_record::{Disk, FilePath, IoOp, MemDisk};

const CONFIG: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n";
/// Messages of a round: more than a segment of the log holds.
const ROUND: u64 = 250;

/// Messages go, and with them blocks.
const LIMITS: &str = r#","max_msgs":700,"duplicate_window":20000000000"#;

/// A node with a stream `S` on `s`, and a client of it. Its log is checkpointed whenever a segment of it is full.
struct Bed {
    net: Net,
    client: Client,
    group: String,
    life: u64,
    /// Message ids so far.
    ids: u64,
    digest_before: Option<u64>,
}

impl Bed {
    fn new(limits: &str) -> Self {
        let mut net = Net::new();
        net.segment_bytes = 64 << 10;
        net.budgets = Budgets {
            log: 1,
            log_remains: 1 << 10,
            log_held: 0,
            block: 32 << 10,
            tail: 8 << 10,
            ..Budgets::default()
        };
        let node = net.add(1, CONFIG);
        net.run(Duration::from_secs(1));
        let client = net.client(node, 0);
        net.tell(client, "SUB in 1\r\n");
        let body = format!(r#"{{"name":"S","subjects":["s"]{limits}}}"#);
        let request = format!("PUB $JS.API.STREAM.CREATE.S in {}\r\n{body}\r\n", body.len());
        net.tell(client, &request);
        let heard = net.hear(client);
        assert!(heard.contains("\"created\""), "{heard}");
        let directory = net.nodes[node].shared.directory.load();
        let group = directory.stream(AccountId(0), "S").unwrap().group.0.to_string();
        drop(directory);
        let mut bed = Self {
            net,
            client,
            group,
            life: 1,
            ids: 0,
            digest_before: None,
        };
        bed.pass(300);
        bed
    }

    fn disk(&self) -> Arc<MemDisk> {
        self.net.nodes[0].disk.clone().unwrap()
    }

    fn file(&self) -> FilePath {
        FilePath::new(&format!("groups/{}", self.group)).unwrap()
    }

    fn pass(&mut self, ms: u64) {
        self.net.run(Duration::from_millis(ms));
    }

    /// Publishes messages with new ids, at one moment, and waits for all acknowledgements.
    fn publish_round(&mut self) {
        let mut text = String::new();
        for id in self.ids..self.ids + ROUND {
            let header = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
            let (head, whole) = (header.len(), header.len() + 300);
            let payload = "x".repeat(300);
            write!(text, "HPUB s in {head} {whole}\r\n{header}{payload}\r\n").unwrap();
        }
        self.ids += ROUND;
        self.net.tell(self.client, &text);
        let heard = self.net.hear(self.client);
        let acks = heard.matches("\"seq\":").count();
        assert!(
            acks == usize::try_from(ROUND).unwrap() && !heard.contains("duplicate"),
            "{acks} of {heard}"
        );
    }

    /// Lets time pass until the log is looked at; the checkpoints of the stream that were written by then.
    fn checkpoints(&mut self) -> Vec<CheckpointWrite> {
        self.net.nodes[0].checkpoints.clear();
        self.pass(1_200);
        let mut all = std::mem::take(&mut self.net.nodes[0].checkpoints);
        all.retain(|one| one.group == self.group);
        all
    }

    /// One round and its checkpoint.
    fn round(&mut self) -> CheckpointWrite {
        self.publish_round();
        let written = self.checkpoints();
        assert!(!written.is_empty());
        written[0].clone()
    }

    fn digest(&self) -> Option<u64> {
        let views = self.net.replicas(0);
        let view = views.iter().find(|view| &*view.name == "S")?;
        assert!(view.failed.is_none(), "{view:?}");
        view.digest
    }

    fn restart(&mut self) {
        self.life += 1;
        self.net.restart(0, 1, CONFIG, self.life);
        self.pass(1_000);
        self.client = self.net.client(0, 0);
        self.net.tell(self.client, "SUB in 1\r\n");
    }

    /// Whether a message with an id that was published is known.
    fn is_known(&mut self, id: u64) -> bool {
        let header = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let text = format!("HPUB s in {0} {0}\r\n{header}\r\n", header.len());
        self.net.tell(self.client, &text);
        let heard = self.net.hear(self.client);
        assert!(heard.contains("\"seq\":"), "{heard}");
        heard.contains("duplicate")
    }
}

#[test]
fn a_checkpoint_costs_what_has_changed_since_the_one_before() {
    let mut bed = Bed::new("");
    let first = bed.round();
    assert!(first.is_base);
    for _ in 0..15 {
        bed.round();
    }
    // A process begins with a base.
    bed.net.kill(0);
    bed.restart();
    let base = bed.round();
    assert!(base.is_base && base.bytes > 16 * ROUND * 32, "{base:?}");
    let delta = bed.round();
    assert!(!delta.is_base && delta.bytes < ROUND * 32 + 12_000, "{delta:?}");
    // One message, which is larger than a segment: its bytes are in a block.
    let text = format!("PUB s in 90000\r\n{}\r\n", "y".repeat(90_000));
    bed.net.tell(bed.client, &text);
    let small = bed.checkpoints();
    assert!(
        matches!(small.as_slice(), [one] if !one.is_base && one.bytes <= 8_192),
        "{small:?}"
    );
    let before = bed.digest();
    bed.net.kill(0);
    bed.restart();
    assert_eq!(bed.digest(), before);
    assert!(bed.is_known(0) && bed.is_known(bed.ids - 1));
}

#[test]
fn deltas_that_outgrow_the_base_give_way_to_a_new_one() {
    let mut bed = Bed::new("");
    let mut file = 0;
    let mut bases = Vec::new();
    for round in 0..30 {
        let written = bed.round();
        file = if written.is_base {
            bases.push((round, file, written.bytes));
            written.bytes
        } else {
            file + written.bytes
        };
        let there = bed.disk().size(&bed.file()).unwrap();
        assert_eq!(there, file, "what a delta adds is all that is written");
    }
    // Each grows with the ids, and so it stands the longer.
    assert!((3..8).contains(&bases.len()), "{bases:?}");
    for pair in bases.windows(2) {
        let ((_, _, base), (_, deltas_too, _)) = (pair[0], pair[1]);
        assert!(deltas_too > base * 2 || deltas_too - base > 64 << 10, "{bases:?}");
    }
    let before = bed.digest();
    bed.net.kill(0);
    bed.restart();
    assert_eq!(bed.digest(), before);
}

#[test]
fn a_delta_that_could_not_be_written_is_followed_by_a_base() {
    let mut bed = Bed::new("");
    assert!(bed.round().is_base);
    assert!(!bed.round().is_base);
    let file = bed.file();
    bed.disk().run(&IoOp::Remove { file: file.clone() }).unwrap();
    bed.publish_round();
    let written: Vec<bool> = bed.checkpoints().iter().map(|one| one.is_base).collect();
    assert_eq!(written, [false, true], "there is no file to append to");
    assert!(bed.disk().size(&file).is_ok() && !bed.round().is_base);
    let before = bed.digest();
    bed.net.kill(0);
    bed.restart();
    assert_eq!(bed.digest(), before);
}

#[test]
fn the_files_of_a_stream_go_with_it() {
    let mut bed = Bed::new("");
    assert!(bed.round().is_base);
    assert!(!bed.round().is_base);
    bed.publish_round();
    bed.net
        .tell(bed.client, "PUB $JS.API.STREAM.DELETE.S in 0\r\n\r\n");
    bed.pass(2_000);
    let files = bed.disk().files();
    let left = |folder: &str| files.iter().any(|(file, _)| file.as_str().starts_with(folder));
    assert!(!left(bed.file().as_str()) && !left("streams/"), "{files:?}");
}

/// Power fails at each step of what the disk does in a second, and once after it; `work` says what is under way then.
fn crash_at_every_step(limits: &str, mut work: impl FnMut(&mut Bed), wanted: &[bool]) {
    let mut bed = Bed::new(limits);
    let (mut steps, mut step, mut hit) = (u64::MAX, 0, 0);
    while step <= steps {
        work(&mut bed);
        let disk = bed.disk();
        let ops = disk.ops();
        // The first time only counts.
        let counts = steps == u64::MAX;
        if !counts && step < steps {
            disk.power_off_after(step);
        }
        let written = bed.checkpoints();
        hit += u32::from(written.first().is_some_and(|one| wanted.contains(&one.is_base)));
        bed.net.kill(0);
        if counts {
            steps = disk.ops() - ops;
            assert!((3..60).contains(&steps), "{steps}");
        } else {
            disk.crash(step * 31 + 7);
            step += 1;
        }
        bed.restart();
        assert_eq!(bed.digest(), bed.digest_before, "step {step} of {steps}");
        assert!(
            bed.is_known(bed.ids - 1) && bed.is_known(bed.ids - ROUND),
            "step {step}"
        );
    }
    assert!(
        hit >= 2,
        "it has failed while it was written, and before and after"
    );
}

#[test]
fn a_crash_at_any_step_of_a_base_loses_nothing() {
    let work = |bed: &mut Bed| {
        bed.publish_round();
        bed.digest_before = bed.digest();
        bed.net.kill(0);
        // A process begins with a base.
        bed.life += 1;
        bed.net.restart(0, 1, CONFIG, bed.life);
    };
    // Without a limit nothing has to be read when the log is applied again, which would wait for the disk.
    crash_at_every_step(r#","duplicate_window":20000000000"#, work, &[true]);
}

#[test]
fn a_crash_at_any_step_of_a_delta_loses_nothing() {
    let work = |bed: &mut Bed| {
        bed.round();
        bed.publish_round();
        bed.digest_before = bed.digest();
    };
    crash_at_every_step(LIMITS, work, &[false]);
}

#[test]
fn a_crash_at_any_step_of_a_later_checkpoint_loses_nothing() {
    let mut rounds = 0;
    let work = |bed: &mut Bed| {
        rounds = rounds % 7 + 1;
        for _ in 0..rounds {
            bed.round();
        }
        bed.publish_round();
        bed.digest_before = bed.digest();
    };
    crash_at_every_step(LIMITS, work, &[true, false]);
}
