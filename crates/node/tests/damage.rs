//! Damage of what a node has on its disk: it stays local, and is made good by the other nodes (promise P4). See `net`.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::Net;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{GroupId, ReplicaId};
use tidelock_node::Listener;
use tidelock_record::{Disk, FilePath, IoOp, MemDisk};

const SECOND: Duration = Duration::from_secs(1);
/// The log is damaged in steps of the unit in which batches are written.
const BLOCK: u64 = 4096;
const SINGLE: &str = "server_name: n0\nport: 4222\njetstream { store_dir: \"/n0\", max_file_store: 1GB }\n\
                      no_auth_user: a\naccounts { A { users: [{user: a, password: a}], jetstream: enabled }\n\
                      SYS { users: [{user: s, password: s}] } }\nsystem_account: SYS\n";
const STREAMS: [&str; 2] = ["A", "B"];
const MESSAGES: usize = 5;

fn config(node: usize) -> String {
    net::clustered(3, node, "")
}

/// Sends a request to a node and answers what comes within a while.
fn ask(net: &mut Net, node: usize, subject: &str, body: &str) -> String {
    let client = net.client(node, 0);
    net.tell(
        client,
        &format!("SUB in 1\r\nPUB {subject} in {}\r\n{body}\r\n", body.len()),
    );
    let mut heard = String::new();
    for _ in 0..20 {
        heard += &net.hear(client);
        if heard.contains("MSG in 1 ") {
            break;
        }
        net.run(SECOND / 10);
    }
    heard
}

fn create(net: &mut Net, replicas: usize) {
    for name in STREAMS {
        let body = format!(r#"{{"name":"{name}","subjects":["{name}.>"],"num_replicas":{replicas}}}"#);
        let heard = ask(net, 0, &format!("$JS.API.STREAM.CREATE.{name}"), &body);
        assert!(heard.contains("\"did_create\":true"), "{heard}");
        for n in 0..MESSAGES {
            let heard = ask(net, 0, &format!("{name}.{n}"), &format!("{name}-{n}"));
            assert!(heard.contains("\"seq\""), "{heard}");
        }
    }
    // The log says in its control file how far it is.
    net.run(SECOND * 3);
}

/// Three nodes with two streams of three replicas.
fn cluster() -> Net {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(1, &config(node));
    }
    net.run(SECOND * 5);
    create(&mut net, 3);
    net
}

fn meta_replica(net: &Net, node: usize) -> Option<ReplicaId> {
    let replicas = net.replicas(node);
    let meta = replicas.iter().find(|view| view.group == GroupId::META);
    meta.map(|view| view.replica)
}

/// Every group has three replicas that vote, go on, and have come to the same.
fn assert_whole(net: &Net, what: &str) {
    let mut groups: BTreeMap<GroupId, Vec<_>> = BTreeMap::new();
    for view in (0..3).flat_map(|node| net.replicas(node)) {
        assert_eq!(view.failed, None, "{what}: {view:?}");
        groups.entry(view.group).or_default().push(view);
    }
    assert_eq!(groups.len(), 1 + STREAMS.len(), "{what}");
    for views in groups.values() {
        assert_eq!(views.len(), 3, "{what}: {views:?}");
        for view in views {
            assert_eq!(
                (view.voters.len(), view.learners.len()),
                (3, 0),
                "{what}: {view:?}"
            );
            assert_eq!(
                (view.applied, view.digest),
                (views[0].applied, views[0].digest),
                "{what}"
            );
        }
    }
}

/// A node leads both streams and serves every message.
fn assert_served_by(net: &mut Net, node: usize, what: &str) {
    for name in STREAMS {
        let body = format!(r#"{{"placement":{{"preferred":"n{node}"}}}}"#);
        let heard = ask(net, 0, &format!("$JS.API.STREAM.LEADER.STEPDOWN.{name}"), &body);
        assert!(
            heard.contains("\"success\":true") || heard.contains("already leader"),
            "{what}: {heard}"
        );
        net.run(SECOND * 2);
        let info = ask(net, node, &format!("$JS.API.STREAM.INFO.{name}"), "");
        assert!(
            info.contains(&format!("\"leader\":\"n{node}\"")),
            "{what}: {info}"
        );
        for n in 0..MESSAGES {
            let body = format!(r#"{{"last_by_subj":"{name}.{n}"}}"#);
            let heard = ask(net, node, &format!("$JS.API.STREAM.MSG.GET.{name}"), &body);
            assert!(
                heard.contains(&format!("\"subject\":\"{name}.{n}\"")),
                "{what}: {heard}"
            );
        }
    }
}

/// The parts of the log that are in use, as places of a bit in a file.
fn places(net: &Net, node: usize) -> Vec<(FilePath, u64)> {
    let disk = net.nodes[node].disk.as_ref().unwrap();
    let mut places = Vec::new();
    for (file, len) in disk.files() {
        if !file.as_str().starts_with("wal/") {
            continue;
        }
        let bytes = disk.read(&file, 0, len).unwrap();
        for (block, content) in bytes.chunks(usize::try_from(BLOCK).unwrap()).enumerate() {
            if content.iter().any(|byte| *byte != 0) {
                // In turn in the header of a batch, and in its body.
                let within = if block % 2 == 0 { 100 } else { 700 };
                let within = within.min(content.len() as u64 - 1);
                places.push((file.clone(), block as u64 * BLOCK + within));
            }
        }
    }
    places
}

fn flip(net: &Net, node: usize, file: &FilePath, offset: u64) {
    let disk = net.nodes[node].disk.as_ref().unwrap();
    assert!(disk.flip_bit(file, offset * 8 + 3), "{file}:{offset}");
}

/// Removes the files of a node below these folders.
fn remove(net: &Net, node: usize, folders: &[&str]) {
    let disk = net.nodes[node].disk.as_ref().unwrap();
    for (file, _) in disk.files() {
        if folders.iter().any(|folder| file.as_str().starts_with(folder)) {
            disk.run(&IoOp::Remove { file }).unwrap();
        }
    }
}

#[test]
fn whatever_part_of_a_nodes_log_is_damaged_the_cluster_heals() {
    let places = places(&cluster(), 2);
    assert!(places.len() > 10, "{places:?}");
    let mut replaced = 0;
    for (n, (file, offset)) in places.iter().enumerate().step_by(3) {
        let what = format!("{file}:{offset}");
        let mut net = cluster();
        let old = meta_replica(&net, 2);
        net.kill(2);
        flip(&net, 2, file, *offset);
        net.restart(2, 1, &config(2), 1);
        assert!(
            meta_replica(&net, 2).is_none_or(|replica| Some(replica) == old),
            "{what}"
        );
        net.run(SECOND * 12);
        assert_whole(&net, &what);
        replaced += usize::from(meta_replica(&net, 2) != old);
        if n % 4 == 0 {
            assert_served_by(&mut net, 2, &what);
        }
    }
    assert!(replaced > 0, "the metadata was never hit");
}

#[test]
fn a_damaged_checkpoint_of_the_metadata_is_made_good() {
    let mut net = cluster();
    net.kill(1);
    remove(&net, 1, &["wal/", "groups/", "streams/", "cluster"]);
    // A node that is filled makes checkpoints.
    net.restart(1, 1, &config(1), 1);
    net.run(SECOND * 12);
    assert_whole(&net, "wiped");
    let old = meta_replica(&net, 1);
    net.kill(1);
    flip(&net, 1, &FilePath::new("groups/1").unwrap(), 30);
    net.restart(1, 1, &config(1), 2);
    assert_eq!(meta_replica(&net, 1), None);
    net.run(SECOND * 12);
    assert_whole(&net, "damaged checkpoint");
    assert_ne!(meta_replica(&net, 1), old);
    assert_served_by(&mut net, 1, "damaged checkpoint");
}

#[test]
fn the_log_says_which_streams_a_server_has_lost() {
    let mut net = cluster();
    net.kill(1);
    remove(&net, 1, &["wal/", "groups/", "streams/"]);
    let lines = net::log::said(|| {
        net.restart(1, 1, &config(1), 1);
        net.run(SECOND * 12);
    });
    let lost = lines
        .iter()
        .filter(|line| line.contains("of this server is lost"));
    let lost = lost.filter(|line| line.contains("stream"));
    let lost: Vec<&str> = lost.filter_map(|line| line.split('\'').nth(1)).collect();
    assert_eq!(
        lost,
        ["$G > A", "$G > B"],
        "each once, when the metadata is there"
    );
    assert_whole(&net, "emptied");
}

#[test]
fn without_a_majority_of_the_metadata_nothing_is_founded_and_nothing_is_deleted() {
    let mut net = cluster();
    for node in [1, 2] {
        net.kill(node);
        remove(&net, node, &["wal/", "groups/1"]);
    }
    let before = net.nodes[1].disk.as_ref().unwrap().files();
    for node in [1, 2] {
        net.restart(node, 1, &config(node), 1);
    }
    net.run(SECOND * 60);
    for node in [1, 2] {
        assert_eq!(net.replicas(node).len(), 0, "node {node}");
    }
    assert_eq!(net.replicas(0).len(), 3);
    // All of them.
    net.kill(0);
    remove(&net, 0, &["wal/", "groups/1"]);
    net.restart(0, 1, &config(0), 1);
    net.run(SECOND * 60);
    for node in 0..3 {
        assert_eq!(net.replicas(node).len(), 0, "node {node}");
    }
    let after = net.nodes[1].disk.as_ref().unwrap().files();
    for (file, len) in before {
        assert!(
            after.iter().any(|(other, now)| *other == file && *now >= len),
            "{file}"
        );
    }
}

#[test]
fn two_nodes_whose_metadata_is_damaged_one_after_the_other_are_both_replaced() {
    let mut net = cluster();
    for node in [1, 2] {
        let old = meta_replica(&net, node);
        net.kill(node);
        remove(&net, node, &["wal/"]);
        net.restart(node, 1, &config(node), 1);
        net.run(SECOND * 12);
        assert_whole(&net, "no log");
        assert_ne!(meta_replica(&net, node), old);
    }
    assert_served_by(&mut net, 1, "no log");
    assert_served_by(&mut net, 2, "no log");
}

#[test]
fn a_node_whose_disk_was_put_back_to_an_earlier_state_is_filled_again() {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(1, &config(node));
    }
    net.run(SECOND * 5);
    let earlier = MemDisk::new();
    let disk = net.nodes[2].disk.clone().unwrap();
    for (file, len) in disk.files() {
        let data = disk.read(&file, 0, len).unwrap();
        earlier.run(&IoOp::Replace { file, data }).unwrap();
    }
    create(&mut net, 3);
    // The leader of the metadata stays, and remembers what this node has acknowledged.
    let leads = |net: &Net, node| {
        net.replicas(node)
            .iter()
            .any(|view| view.group == GroupId::META && view.is_leader)
    };
    assert!(!leads(&net, 2));
    let old = meta_replica(&net, 2);
    net.kill(2);
    net.nodes[2].disk = Some(Arc::new(earlier));
    net.restart(2, 1, &config(2), 1);
    net.run(SECOND * 15);
    assert_whole(&net, "put back");
    assert_ne!(meta_replica(&net, 2), old);
    assert_served_by(&mut net, 2, "put back");
}

/// What a node alone says of its health.
fn health(net: &mut Net) -> String {
    net.nodes[0].shared.system.set_ready();
    let system = net.open(0, 0, Listener::Client);
    net.tell(
        system,
        "CONNECT {\"user\":\"s\",\"pass\":\"s\"}\r\nSUB in 1\r\nPUB $SYS.REQ.SERVER.PING.HEALTHZ in 0\r\n\r\n",
    );
    net.run(SECOND);
    net.hear(system)
}

/// A node alone with two streams.
fn single() -> Net {
    let mut net = Net::new();
    net.add(1, SINGLE);
    net.run(SECOND);
    create(&mut net, 1);
    net
}

#[test]
fn a_node_alone_says_what_is_damaged_or_serves_what_is_whole() {
    let places = places(&single(), 0);
    let (mut refused, mut served, mut part, mut down) = (0, 0, 0, 0);
    for (file, offset) in places {
        let what = format!("{file}:{offset}");
        let mut net = single();
        net.kill(0);
        let disk = net.nodes[0].disk.clone().unwrap();
        flip(&net, 0, &file, offset);
        let before: Vec<FilePath> = disk.files().into_iter().map(|(file, _)| file).collect();
        if let Err(text) = net.try_restart(0, 1, SINGLE, 1) {
            let place = format!("{file}:{}", offset / BLOCK * BLOCK);
            assert!(text.contains(&place), "{what}: {text}");
            assert!(text.contains("Nothing was deleted"), "{what}: {text}");
            let again = net.try_restart(0, 1, SINGLE, 2);
            assert_eq!(again, Err(text), "{what}");
            refused += 1;
        } else {
            net.run(SECOND * 3);
            let health = health(&mut net);
            let mut all = true;
            for name in STREAMS {
                let info = ask(&mut net, 0, &format!("$JS.API.STREAM.INFO.{name}"), "");
                if info.contains(&format!("\"messages\":{MESSAGES},")) {
                    served += 1;
                } else if info.contains("\"messages\":") {
                    part += 1;
                } else {
                    assert!(!info.contains("stream not found"), "{what}: {info}");
                    let named = format!("'A \\u003e {name}'");
                    assert!(health.contains(&named), "{what}: {health}");
                    down += 1;
                    all = false;
                }
            }
            assert_eq!(health.contains("\"status\":\"ok\""), all, "{what}: {health}");
        }
        let after = disk.files();
        for file in before.iter().filter(|file| !file.as_str().starts_with("wal/")) {
            assert!(after.iter().any(|(other, _)| other == file), "{what}: {file}");
        }
    }
    assert!(
        refused > 0 && served > 0 && part > 0 && down > 0,
        "{refused} {served} {part} {down}"
    );
}

#[test]
fn a_node_alone_without_its_log_does_not_start_as_a_new_one() {
    let mut net = single();
    net.kill(0);
    remove(&net, 0, &["wal/"]);
    let text = net.try_restart(0, 1, SINGLE, 1).unwrap_err();
    assert!(text.contains("its log is gone"), "{text}");
    // A cluster block does not help where there is no other server.
    let text = net.try_restart(0, 1, &config(0), 2).unwrap_err();
    assert!(text.contains("No other server has a copy"), "{text}");
}

#[test]
fn files_of_two_stores_are_not_mixed() {
    let mut net = cluster();
    net.kill(0);
    net.kill(1);
    let cluster = FilePath::new("cluster").unwrap();
    let disks: Vec<_> = net.nodes.iter().map(|node| node.disk.clone().unwrap()).collect();
    let len = disks[1].size(&cluster).unwrap();
    let data = disks[1].read(&cluster, 0, len).unwrap();
    disks[0]
        .run(&IoOp::Replace {
            file: cluster.clone(),
            data,
        })
        .unwrap();
    let text = net.try_restart(0, 1, &config(0), 1).unwrap_err();
    assert!(text.contains("one of the two belongs to another store"), "{text}");
    // The log of another server, without the file that says so.
    disks[0].run(&IoOp::Remove { file: cluster }).unwrap();
    net.nodes[0].disk = Some(disks[1].clone());
    disks[1]
        .run(&IoOp::Remove {
            file: FilePath::new("cluster").unwrap(),
        })
        .unwrap();
    let text = net.try_restart(0, 1, &config(0), 2).unwrap_err();
    assert!(
        text.contains("does not know this server") || text.contains("belongs to another store"),
        "{text}"
    );
}
