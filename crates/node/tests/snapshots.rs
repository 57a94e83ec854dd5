//! A replica that is filled by a snapshot: what fails on the way, and what is left on the disk. See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::{Client, Net};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex};
use tidelock_node::{Budgets, LaneKind, ReplicaView};
use tidelock_record::{Fault, FilePath, MemDisk};

const SECOND: Duration = Duration::from_secs(1);

fn config(node: usize) -> String {
    net::clustered_for_clients(3, node)
}

/// Three nodes with a stream `S` on `s`; one is away, and has missed more than the logs of the others hold.
struct Scene {
    net: Net,
    client: Client,
    leader: usize,
    away: usize,
    /// The last entry that it has.
    has: LogIndex,
    life: u64,
}

/// `dead`: it is switched off, and else cut off.
fn scene(dead: bool) -> Scene {
    scene_with(dead, 0)
}

/// The same, with logs that are kept up to a size for who is behind.
fn scene_with(dead: bool, log_held: u64) -> Scene {
    let mut net = Net::new();
    net.segment_bytes = 64 << 10;
    net.budgets = Budgets {
        log: 1,
        log_remains: 1 << 10,
        log_held,
        block: 64 << 10,
        tail: 8 << 10,
        entries: 16 << 10,
        ..Budgets::default()
    };
    for node in 0..3 {
        net.add(1, &config(node));
    }
    net.run(SECOND * 8);
    let client = net.client(0, 0);
    net.tell(client, "SUB in 1\r\n");
    let body = r#"{"name":"S","subjects":["s"],"num_replicas":3}"#;
    net.tell(
        client,
        &format!("PUB $JS.API.STREAM.CREATE.S in {}\r\n{body}\r\n", body.len()),
    );
    net.run(SECOND * 3);
    let heard = net.hear(client);
    assert!(heard.contains("\"did_create\":true"), "{heard}");
    net.tell(client, "PUB $JS.API.STREAM.INFO.S in 0\r\n\r\n");
    let heard = net.hear(client);
    let (_, rest) = heard.split_once("\"leader\":\"n").unwrap();
    let leader = usize::from(rest.as_bytes()[0] - b'0');
    let client = net.client(leader, 0);
    net.tell(client, "SUB in 1\r\n");
    let mut scene = Scene {
        net,
        client,
        leader,
        away: (leader + 1) % 3,
        has: LogIndex(0),
        life: 1,
    };
    scene.publish(150);
    let away = scene.away;
    scene.has = scene.view(away).applied;
    if dead {
        scene.net.kill(away);
    } else {
        for other in (0..3).filter(|other| *other != away) {
            scene.net.cut(other, away);
            scene.net.cut(away, other);
        }
    }
    scene.net.run(SECOND);
    for _ in 0..4 {
        scene.publish(150);
        scene.net.run(SECOND * 2);
    }
    scene
}

impl Scene {
    fn publish(&mut self, count: usize) {
        let publish = format!("PUB s in 2000\r\n{}\r\n", "x".repeat(2_000));
        for _ in 0..count / 10 {
            self.net.tell(self.client, &publish.repeat(10));
        }
        self.net.run(SECOND * 2);
        let acks = self.net.hear(self.client).matches("\"seq\":").count();
        assert_eq!(acks, count);
    }

    fn restart(&mut self) {
        self.life += 1;
        self.net.restart(self.away, 1, &config(self.away), self.life);
    }

    fn disk(&self) -> Arc<MemDisk> {
        self.net.nodes[self.away].disk.clone().unwrap()
    }

    fn view(&self, node: usize) -> ReplicaView {
        let views = self.net.replicas(node).into_iter();
        views
            .into_iter()
            .find(|view| view.group != GroupId::META)
            .unwrap()
    }

    /// The folders with blocks of the node that is filled.
    fn folders(&self) -> BTreeSet<String> {
        let files = self.disk().files();
        let blocks = files
            .iter()
            .filter(|(path, _)| path.as_str().starts_with("streams/"));
        blocks.map(|(path, _)| path.parent().name().to_owned()).collect()
    }

    fn is_filled(&self) -> bool {
        let (one, other) = (self.view(self.away), self.view(self.leader));
        assert_eq!(one.failed, None);
        (one.applied, one.digest) == (other.applied, other.digest)
    }

    /// Whether `/healthz` of the node that is filled says so.
    fn is_well(&mut self) -> bool {
        let health = self.net.health(self.away);
        health.contains("\"status\":\"ok\"")
    }

    /// Lets time pass until something is so.
    fn wait(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..600 {
            if is_so(self) {
                return;
            }
            self.net.run(SECOND / 10);
        }
        panic!("{what} has not come");
    }
}

#[test]
fn a_replica_that_was_away_is_filled_and_keeps_nothing_old() {
    for dead in [true, false] {
        let mut scene = scene(dead);
        let before = scene.folders();
        if dead {
            scene.restart();
        } else {
            scene.net.heal();
        }
        scene.wait("the snapshot", Scene::is_filled);
        scene.net.run(SECOND * 2);
        let after = scene.folders();
        assert!(
            after.len() == 1 && after.is_disjoint(&before),
            "{before:?} {after:?}"
        );
        scene.publish(10);
        assert!(scene.is_filled());
    }
}

/// Its leader has kept the log for it: it is sent what it lacks, and nothing that it has.
#[test]
fn a_replica_that_was_away_for_a_while_is_sent_entries_of_the_log() {
    for dead in [true, false] {
        let mut scene = scene_with(dead, 16 << 20);
        let before = scene.folders();
        let (has, leader) = (scene.has, scene.view(scene.leader));
        assert!(leader.applied.0 > has.0 + 20 && leader.floor <= has);
        if dead {
            scene.restart();
        } else {
            scene.net.heal();
        }
        scene.wait("what it lacks", Scene::is_filled);
        assert_eq!(scene.folders(), before, "no snapshot");
        // The log is let go once nobody needs it.
        scene.publish(150);
        scene.net.run(SECOND * 3);
        assert!(scene.is_filled() && scene.is_well());
        let floor = scene.view(scene.leader).floor;
        assert!(floor > has, "{floor}");
    }
}

/// What it lacks does not fit into what is kept.
#[test]
fn the_log_is_kept_for_who_is_away_up_to_a_limit() {
    let mut scene = scene_with(true, 500 << 10);
    let before = scene.folders();
    let (has, leader) = (scene.has, scene.view(scene.leader));
    assert!(leader.floor > has, "{} {has}", leader.floor);
    let (kept, lacks) = (leader.applied.0 - leader.floor.0, leader.applied.0 - has.0);
    assert!(
        kept > lacks / 5 && kept < lacks * 4 / 5,
        "{kept} of {lacks} that it lacks"
    );
    scene.restart();
    scene.wait("the snapshot", Scene::is_filled);
    scene.net.run(SECOND * 2);
    assert!(scene.folders().is_disjoint(&before));
}

/// The disk does not give back what the log has.
#[test]
fn a_replica_whose_entries_cannot_be_read_back_is_filled_by_a_snapshot() {
    let mut scene = scene_with(true, 16 << 20);
    let before = scene.folders();
    scene.restart();
    scene.net.nodes[scene.leader]
        .disk
        .as_ref()
        .unwrap()
        .fail(Fault::Read, 0);
    scene.wait("the snapshot", Scene::is_filled);
    scene.net.run(SECOND * 2);
    assert!(scene.folders().is_disjoint(&before));
}

/// Nobody waits for a node that is gone: the one that leads next fills the replica.
#[test]
fn a_snapshot_whose_source_dies_comes_from_the_next_leader() {
    let mut scene = scene(true);
    let before = scene.folders();
    scene.restart();
    let source = scene.leader;
    let mut steps = 0;
    while scene.folders() == before {
        scene.net.run(SECOND / 100);
        scene.net.hold_disk(source, true);
        scene.net.release_disk_once(source);
        steps += 1;
        assert!(steps < 10_000, "nothing is received");
    }
    scene.net.run(SECOND * 3);
    assert!(!scene.is_filled(), "it is on its way");
    assert!(!scene.is_well(), "it is not there yet");
    scene.net.kill(source);
    scene.leader = 3 - source - scene.away;
    scene.net.run(SECOND * 10);
    assert!(
        scene.is_filled(),
        "{:?} {:?}",
        scene.view(scene.away),
        scene.view(scene.leader)
    );
    assert!(scene.is_well(), "{}", scene.net.health(scene.away));
}

/// What cannot be read after it was received is tried again after a pause, and fetched anew after three times. The
/// replica goes on with its old state meanwhile, and nothing is left of what was given up.
#[test]
fn a_snapshot_that_cannot_be_read_is_fetched_anew() {
    let mut scene = scene(false);
    let before = scene.folders();
    let disk = scene.disk();
    for _ in 0..7 {
        disk.fail(Fault::Read, 0);
    }
    scene.net.heal();
    let mut states = Vec::new();
    for _ in 0..600 {
        if scene.is_filled() {
            break;
        }
        let folders = scene.folders();
        if states.last() != Some(&folders) {
            states.push(folders);
        }
        scene.net.run(SECOND / 50);
    }
    scene.wait("the snapshot", Scene::is_filled);
    let old = |state: &BTreeSet<String>| *state == before;
    assert!(
        states.iter().filter(|state| old(state)).count() == 3,
        "{states:?}"
    );
    let both = states.iter().filter(|state| !old(state));
    assert!(both.clone().count() >= 3, "{states:?}");
    assert!(both.clone().all(|state| state.is_superset(&before)), "{states:?}");
    scene.net.run(SECOND * 2);
    assert_eq!(scene.folders().len(), 1);
    scene.publish(10);
    assert!(scene.is_filled());
}

impl Scene {
    fn die(&mut self) {
        self.net.kill(self.away);
        self.disk().fail_no_more();
    }

    /// The name of the stream's file of checkpoints.
    fn group(&self) -> String {
        self.view(self.leader).group.0.to_string()
    }

    /// Who starts now meets nobody until [`Net::heal`].
    fn be_alone(&mut self) {
        for other in (0..3).filter(|other| *other != self.away) {
            self.net.cut(other, self.away);
            self.net.cut(self.away, other);
        }
    }
}

/// The server dies while it receives a snapshot: its log does not name the files.
#[test]
fn what_a_broken_off_installation_has_written_goes_at_the_next_start() {
    let mut scene = scene(false);
    let before = scene.folders();
    scene.net.heal();
    // It stops when the files are there, and are not read.
    for _ in 0..3 {
        scene.disk().fail(Fault::Read, 0);
    }
    scene.wait("the staging", |scene| scene.folders().len() == 2);
    scene.die();
    assert_eq!(scene.folders().len(), 2);
    scene.be_alone();
    scene.restart();
    assert_eq!(scene.folders(), before, "at once");
    scene.net.run(SECOND * 2);
    assert_eq!(scene.folders(), before);
    scene.net.heal();
    scene.wait("the snapshot", Scene::is_filled);
}

/// The server dies when a snapshot is in force and no checkpoint says so: the old checkpoint names the old blocks, which
/// go with it.
#[test]
fn what_a_snapshot_has_replaced_goes_with_the_checkpoint_that_names_it() {
    let mut scene = scene(false);
    let (before, group) = (scene.folders(), scene.group());
    scene.disk().refuse(&group, 1_000);
    scene.net.heal();
    scene.wait("the snapshot", Scene::is_filled);
    assert_eq!(scene.folders().len(), 2);
    scene.die();
    // As long as there is no checkpoint of the new state nothing goes, however often it starts.
    for _ in 0..2 {
        scene.disk().refuse(&group, 1_000);
        scene.be_alone();
        scene.restart();
        scene.net.run(SECOND * 2);
        assert_eq!(scene.folders().len(), 2);
        scene.die();
    }
    scene.be_alone();
    scene.restart();
    scene.net.run(SECOND * 2);
    let after = scene.folders();
    assert!(
        after.len() == 1 && after.is_disjoint(&before),
        "{before:?} {after:?}"
    );
    let state = |(path, _): &(FilePath, u64)| path.name() == "state";
    assert!(!scene.disk().files().iter().any(state), "the checkpoint has it");
    scene.net.heal();
    scene.wait("the others", Scene::is_filled);
    scene.publish(10);
    scene.die();
    scene.restart();
    scene.wait("the others", Scene::is_filled);
    assert_eq!(scene.folders(), after);
}

/// The log takes longer to record a snapshot than a transfer may be quiet.
#[test]
fn a_snapshot_that_the_log_has_been_told_of_is_not_given_up() {
    let mut scene = scene(false);
    let before = scene.view(scene.away).commit;
    scene.net.heal();
    let mut steps = 0;
    while scene.view(scene.away).commit == before {
        scene.net.run(SECOND / 100);
        scene.net.hold_disk(scene.away, true);
        scene.net.release_disk_once(scene.away);
        steps += 1;
        assert!(steps < 10_000, "there is no snapshot");
    }
    scene.net.run(SECOND * 40);
    assert!(!scene.is_filled(), "it is not recorded yet");
    scene.net.hold_disk(scene.away, false);
    scene.wait("the snapshot", Scene::is_filled);
    scene.publish(10);
    scene.net.run(SECOND * 2);
    assert!(scene.is_filled() && scene.folders().len() == 1);
}

/// What it lacks it cannot know to be committed by itself; its leader tells it.
#[test]
fn a_replica_is_not_well_before_it_has_what_was_committed_when_it_came_back() {
    for dead in [true, false] {
        let mut scene = scene(dead);
        let goal = scene.view(scene.leader).commit;
        // It hears of its leader long before it hears of the snapshot.
        for source in (0..3).filter(|source| *source != scene.away) {
            scene.net.hold_lane(source, scene.away, LaneKind::Bulk, true);
        }
        if dead {
            scene.restart();
        } else {
            scene.net.heal();
        }
        let mut seen = 0;
        for step in 0..400 {
            if step == 60 {
                for source in (0..3).filter(|source| *source != scene.away) {
                    scene.net.hold_lane(source, scene.away, LaneKind::Bulk, false);
                }
            }
            scene.net.run(SECOND / 20);
            let (well, applied) = (scene.is_well(), scene.view(scene.away).applied);
            assert!(!well || applied >= goal, "{dead} {step}: {applied:?} of {goal:?}");
            seen += u32::from(applied < goal);
        }
        assert!(seen >= 60, "it was filled after {seen} steps");
        assert!(scene.is_well(), "{}", scene.net.health(scene.away));
    }
}

/// The ids of a window for duplicates are part of the state, which is kept in a file: a record of the log cannot be that
/// long, nor a frame of a link.
#[test]
fn a_state_that_is_larger_than_a_record_of_the_log_is_received_and_comes_back() {
    const IDS: usize = 1_500;
    let mut net = Net::new();
    net.budgets = Budgets {
        entries: 16 << 10,
        ..Budgets::default()
    };
    for node in 0..3 {
        net.add(1, &config(node));
    }
    net.run(SECOND * 8);
    let body = r#"{"name":"S","subjects":["s"],"num_replicas":1,"duplicate_window":3600000000000}"#;
    let made = net.ask_json("a", 0, "$JS.API.STREAM.CREATE.S", body);
    assert_eq!(made["did_create"], true, "{made}");
    let client = net.client(0, 0);
    net.tell(client, "SUB in 1\r\n");
    let publish = |net: &mut Net, client, n: usize| {
        let header = format!("NATS/1.0\r\nNats-Msg-Id: {n:060000}\r\n\r\n");
        net.tell(
            client,
            &format!("HPUB s in {0} {0}\r\n{header}\r\n", header.len()),
        );
    };
    (0..IDS).for_each(|n| publish(&mut net, client, n));
    net.run(SECOND * 2);
    assert_eq!(net.hear(client).matches("\"seq\"").count(), IDS);
    let body = body.replace("replicas\":1", "replicas\":3");
    let made = net.ask_json("a", 0, "$JS.API.STREAM.UPDATE.S", &body);
    assert!(made["error"].is_null(), "{made}");
    let are_alike = |net: &Net| {
        let views: Vec<_> = (0..3).filter_map(|node| net.replica(node, "S")).collect();
        let alike = |view: &ReplicaView| view.voters.len() == 3 && view.digest == views[0].digest;
        views.len() == 3 && views.iter().all(alike)
    };
    let fill = |net: &mut Net| {
        let mut steps = 0;
        while !are_alike(net) {
            net.run(SECOND / 2);
            steps += 1;
            assert!(steps < 100, "the replicas are not filled");
        }
    };
    fill(&mut net);
    let filled = (0..3)
        .find(|node| !net.replica(*node, "S").unwrap().is_leader)
        .unwrap();
    let disk = net.nodes[filled].disk.clone().unwrap();
    let is_state = |path: &str| path.starts_with("streams/") && path.ends_with("/state");
    net.run(SECOND * 2);
    let files = disk.files();
    assert!(
        !files.iter().any(|(path, _)| is_state(path.as_str())),
        "it is not needed any more"
    );
    for node in 0..3 {
        net.kill(node);
        net.restart(node, 1, &config(node), 2);
    }
    net.run(SECOND * 8);
    fill(&mut net);
    let client = net.client(filled, 0);
    net.tell(client, "SUB in 1\r\n");
    publish(&mut net, client, IDS - 1);
    net.run(SECOND);
    let heard = net.hear(client);
    assert!(heard.contains("\"duplicate\": true"), "{heard}");
}
