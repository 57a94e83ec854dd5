//! What becomes of streams when a server is taken out of the cluster, and of that server when it is there again: see `net`
//! for the network that they are on.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test that is wrong about its own network may panic"
)]

#[expect(dead_code, reason = "the network can do more than these tests need")]
mod net;

use net::Net;
use serde_json::Value;
use std::time::Duration;
use tidelock_base::{GroupId, ReplicaId};
use tidelock_node::{Listener, ReplicaView};

const SECOND: Duration = Duration::from_secs(1);
const WORKERS: u16 = 2;

fn config(node: usize) -> String {
    config_of(3, node)
}

/// Configuration of one of so many nodes.
fn config_of(nodes: usize, node: usize) -> String {
    let accounts = "authorization { timeout: 60 }\naccounts { A { jetstream: enabled, users: [{user: a, password: p}] }, \
                    SYS { users: [{user: s, password: p}] } }\nsystem_account: SYS\n";
    net::clustered(nodes, node, accounts)
}

/// Sends a request to a node and answers what comes within a while.
fn ask_at(net: &mut Net, node: usize, user: &str, subject: &str, body: &str) -> Value {
    net.ask_json(user, node, subject, body)
}

/// The same, of the first node.
fn ask(net: &mut Net, user: &str, subject: &str, body: &str) -> Value {
    ask_at(net, 0, user, subject, body)
}

/// Makes a stream with one message, through a node.
fn make_at(net: &mut Net, node: usize, name: &str, replicas: usize) {
    let body = format!(r#"{{"name":"{name}","subjects":["{name}"],"num_replicas":{replicas}}}"#);
    let made = ask_at(net, node, "a", &format!("$JS.API.STREAM.CREATE.{name}"), &body);
    assert_eq!(made["did_create"], true, "{made}");
    let ack = ask_at(net, node, "a", name, "x");
    assert_eq!(ack["seq"], 1, "{ack}");
}

/// Takes a server out of the cluster, in the name of the operator.
fn remove_at(net: &mut Net, node: usize, removed: usize) {
    let body = format!(r#"{{"peer":"n{removed}"}}"#);
    let answer = ask_at(net, node, "s", "$JS.API.SERVER.REMOVE", &body);
    assert_eq!(answer["success"], true, "{answer}");
}

/// What `/healthz` of a node says.
fn health(net: &mut Net, node: usize) -> Value {
    let said: Value = serde_json::from_str(&net.health(node)).unwrap();
    said["data"].clone()
}

fn view(net: &Net, node: usize, name: &str) -> Option<ReplicaView> {
    net.replica(node, name)
}

fn meta_replica(net: &Net, node: usize) -> ReplicaId {
    let replicas = net.replicas(node);
    let meta = replicas.iter().find(|view| view.group == GroupId::META);
    meta.unwrap().replica
}

/// All nodes are well; the metadata and these streams are on all of them, and alike.
fn assert_whole(net: &mut Net, streams: &[&str], what: &str) {
    let nodes = net.nodes.len();
    for node in 0..nodes {
        let health = health(net, node);
        assert_eq!(health["status"], "ok", "{what}: node {node}: {health}");
    }
    for name in std::iter::once(&"_meta_").chain(streams) {
        let views: Vec<ReplicaView> = (0..nodes)
            .map(|node| {
                view(net, node, name).unwrap_or_else(|| panic!("{what}: {name} is not on node {node}"))
            })
            .collect();
        let mut ids: Vec<ReplicaId> = views.iter().map(|view| view.replica).collect();
        ids.sort_unstable();
        for one in &views {
            assert_eq!(
                (&one.voters, one.failed.as_ref()),
                (&ids, None),
                "{what}: {one:?}"
            );
            assert_eq!(
                (one.applied, one.digest),
                (views[0].applied, views[0].digest),
                "{what}: {one:?}"
            );
        }
    }
}

/// What has to be answered through a node, whoever leads: by the metadata's leader, by a stream's, by a replica.
fn assert_serves(net: &mut Net, node: usize, new: &str) {
    make_at(net, node, new, 3);
    let names = ask_at(net, node, "a", "$JS.API.STREAM.NAMES", "");
    let listed = names["streams"].as_array().unwrap();
    assert!(listed.iter().any(|name| name == new), "{names}");
    let info = ask_at(net, node, "a", &format!("$JS.API.STREAM.INFO.{new}"), "");
    assert_eq!(info["state"]["messages"], 1, "{info}");
    let got = ask_at(
        net,
        node,
        "a",
        &format!("$JS.API.STREAM.MSG.GET.{new}"),
        r#"{"seq":1}"#,
    );
    assert_eq!(got["message"]["subject"], new, "{got}");
}

/// Nothing gets from a node to the others, or from them to it.
fn cut_off(net: &mut Net, node: usize) {
    for other in (0..3).filter(|other| *other != node) {
        net.cut(node, other);
        net.cut(other, node);
    }
}

/// Three nodes.
fn three() -> Net {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(WORKERS, &config(node));
    }
    net.run(SECOND * 5);
    net
}

/// The other replicas of a stream, and whether they are current.
fn replicas(net: &mut Net, stream: &str) -> Vec<(String, bool)> {
    let info = ask(net, "a", &format!("$JS.API.STREAM.INFO.{stream}"), "");
    let leader = info["cluster"]["leader"].clone();
    let others = info["cluster"]["replicas"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let others = others
        .iter()
        .map(|one| (one["name"].as_str().unwrap().to_owned(), one["current"] == true));
    let mut all: Vec<(String, bool)> = others.collect();
    all.push((leader.as_str().unwrap_or_default().to_owned(), true));
    all.sort();
    all
}

/// Three nodes, a stream on all of them, and the third node is gone for good.
fn without_the_third() -> Net {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    net.kill(2);
    net.run(SECOND * 6);
    remove_at(&mut net, 0, 2);
    net.run(SECOND * 3);
    net
}

#[test]
fn streams_go_on_without_a_server_that_was_removed_and_take_another_when_there_is_one() {
    let mut net = without_the_third();
    let all = |names: &[&str]| -> Vec<(String, bool)> {
        names.iter().map(|name| ((*name).to_owned(), true)).collect()
    };
    assert_eq!(replicas(&mut net, "three"), all(&["n0", "n1"]));
    let ack = ask(&mut net, "a", "three", "y");
    assert_eq!(ack["seq"], 2, "{ack}");

    net.add(WORKERS, &config(3));
    net.run(SECOND * 10);
    assert_eq!(replicas(&mut net, "three"), all(&["n0", "n1", "n3"]));
}

#[test]
fn a_server_that_was_removed_while_it_was_down_comes_in_again_with_its_store() {
    let mut net = three();
    let old = meta_replica(&net, 2);
    make_at(&mut net, 0, "gone", 3);
    // Streams of one replica, until there is one on the node that is removed.
    let alone = (0..6).map(|n| format!("alone{n}")).find(|name| {
        make_at(&mut net, 0, name, 1);
        view(&net, 2, name).is_some()
    });
    let alone = alone.unwrap();
    make_at(&mut net, 0, "three", 3);
    let before = view(&net, 2, "three").unwrap().replica;
    net.kill(2);
    net.run(SECOND * 6);
    remove_at(&mut net, 0, 2);
    let deleted = ask(&mut net, "a", "$JS.API.STREAM.DELETE.gone", "");
    assert_eq!(deleted["success"], true, "{deleted}");
    let ack = ask(&mut net, "a", "three", "y");
    assert_eq!(ack["seq"], 2, "{ack}");

    net.restart(2, WORKERS, &config(2), 1);
    net.run(SECOND * 10);
    assert_whole(&mut net, &["three"], "back");
    assert!(meta_replica(&net, 2) > old);
    assert!(view(&net, 2, "three").unwrap().replica > before);
    assert_eq!(view(&net, 2, "gone"), None);
    // The others could not do without its replica, so that it is still the one.
    let got = ask_at(
        &mut net,
        2,
        "a",
        &format!("$JS.API.STREAM.MSG.GET.{alone}"),
        r#"{"seq":1}"#,
    );
    assert_eq!(got["message"]["subject"], *alone, "{got}");
    assert_serves(&mut net, 2, "new");
    // It stays what it is.
    let new = meta_replica(&net, 2);
    net.kill(2);
    net.restart(2, WORKERS, &config(2), 2);
    net.run(SECOND * 6);
    assert_whole(&mut net, &["three", "new"], "started again");
    assert_eq!(meta_replica(&net, 2), new);
}

/// It starts with the metadata of the moment when it was let in, and learns from its log what has become of that.
#[test]
fn what_was_deleted_since_a_server_came_back_is_not_reported_as_lost() {
    let mut net = three();
    net.kill(2);
    net.run(SECOND * 6);
    remove_at(&mut net, 0, 2);
    net.restart(2, WORKERS, &config(2), 1);
    net.run(SECOND * 10);
    let names = ["one", "two", "three", "four"];
    for (name, replicas) in names.iter().zip([1, 1, 1, 3]) {
        make_at(&mut net, 0, name, replicas);
    }
    net.run(SECOND);
    // What it is given once more begins with these.
    net.kill(2);
    net.run(SECOND * 6);
    remove_at(&mut net, 0, 2);
    net.restart(2, WORKERS, &config(2), 2);
    net.run(SECOND * 10);
    let placed = names.iter().filter(|name| view(&net, 2, name).is_some());
    assert!(placed.count() > 1);
    for name in names {
        let deleted = ask(&mut net, "a", &format!("$JS.API.STREAM.DELETE.{name}"), "");
        assert_eq!(deleted["success"], true, "{deleted}");
    }
    net.run(SECOND);
    net.kill(2);
    let lines = net::log::said(|| {
        net.restart(2, WORKERS, &config(2), 3);
        net.run(SECOND * 8);
    });
    assert!(!lines.is_empty());
    let wrong: Vec<&String> = lines.iter().filter(|line| line.starts_with("ERROR")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_whole(&mut net, &[], "started again");
}

/// Its server was away when the stream was deleted and another one was made under its name. What it took before it hears
/// of that would be lost.
#[test]
fn a_replica_that_was_deleted_while_its_server_was_away_takes_nothing_more() {
    let mut net = three();
    let alone = (0..6).map(|n| format!("alone{n}")).find(|name| {
        make_at(&mut net, 0, name, 1);
        view(&net, 2, name).is_some()
    });
    let alone = alone.unwrap();
    for _ in 0..3 {
        ask(&mut net, "a", &alone, "x");
    }
    // So that its log says that the stream is committed.
    for name in ["more", "another"] {
        make_at(&mut net, 0, name, 3);
    }
    net.run(SECOND * 3);
    net.kill(2);
    net.run(SECOND * 6);
    let deleted = ask(&mut net, "a", &format!("$JS.API.STREAM.DELETE.{alone}"), "");
    assert_eq!(deleted["success"], true, "{deleted}");
    make_at(&mut net, 0, &alone, 1);
    // The others take a moment to be reached.
    cut_off(&mut net, 2);
    net.restart(2, WORKERS, &config(2), 1);
    let client = net.open(2, 0, Listener::Client);
    net.tell(
        client,
        "CONNECT {\"user\":\"a\",\"pass\":\"p\",\"verbose\":false}\r\nSUB in 1\r\n",
    );
    for step in 0..300 {
        if step == 30 {
            net.heal();
        }
        net.tell(client, &format!("PUB {alone} in 1\r\ny\r\n"));
        net.run(SECOND / 20);
    }
    net.run(SECOND * 3);
    let heard = net.hear(client);
    let acked = heard.matches("\"seq\":").count() as u64;
    assert!(acked > 0, "{heard}");
    let info = ask(&mut net, "a", &format!("$JS.API.STREAM.INFO.{alone}"), "");
    let stored = info["state"]["messages"].as_u64().unwrap();
    assert!(
        stored > acked,
        "{acked} were acknowledged, and one before: {info}"
    );
}

/// Its server looks whether the stream is still there, and no longer than that takes.
#[test]
fn what_waits_for_the_only_replica_is_taken_soon_after_its_server_has_started() {
    let mut net = three();
    let alone = (0..6).map(|n| format!("alone{n}")).find(|name| {
        make_at(&mut net, 0, name, 1);
        view(&net, 2, name).is_some()
    });
    let alone = alone.unwrap();
    net.kill(2);
    net.run(SECOND * 13 / 10);
    let client = net.open(0, 0, Listener::Client);
    net.tell(
        client,
        &format!(
            "CONNECT {{\"user\":\"a\",\"pass\":\"p\",\"verbose\":false}}\r\nSUB in 1\r\nPUB {alone} in 1\r\ny\r\n"
        ),
    );
    net.run(SECOND / 10);
    net.restart(2, WORKERS, &config(2), 1);
    net.run(SECOND / 2);
    let heard = net.hear(client);
    assert!(heard.contains("\"seq\":2"), "{heard}");
}

/// The stream stays where it is; no other server is to have anything of it.
#[test]
fn servers_are_well_although_the_only_replica_of_a_stream_is_on_one_that_was_removed() {
    let mut net = three();
    let is_on_the_third = |net: &mut Net, name: &String| {
        make_at(net, 0, name, 1);
        view(net, 2, name).is_some()
    };
    let names: Vec<String> = (0..6).map(|n| format!("alone{n}")).collect();
    assert!(names.iter().any(|name| is_on_the_third(&mut net, name)));
    net.kill(2);
    net.run(SECOND * 6);
    remove_at(&mut net, 0, 2);
    net.run(SECOND * 3);
    for node in 0..2 {
        assert_eq!(
            health(&mut net, node)["status"],
            "ok",
            "{}",
            health(&mut net, node)
        );
    }
}

/// Its server is removed while the stream is scaled down to it: no other server is to have anything of the stream, either.
#[test]
fn servers_are_well_after_one_was_removed_while_streams_were_scaled_down() {
    let mut net = three();
    let names: Vec<String> = (0..6).map(|n| format!("S{n}")).collect();
    for name in &names {
        make_at(&mut net, 0, name, 3);
    }
    for name in &names {
        let body = format!(r#"{{"name":"{name}","subjects":["{name}"],"num_replicas":1}}"#);
        let client = net.open(0, 0, Listener::Client);
        net.tell(
            client,
            &format!(
                "CONNECT {{\"user\":\"a\",\"pass\":\"p\",\"verbose\":false}}\r\nPUB $JS.API.STREAM.UPDATE.{name} in {}\r\n{body}\r\n",
                body.len()
            ),
        );
    }
    net.run(SECOND / 20);
    let leads = |net: &Net, node: usize| {
        let is_leader = |name: &&String| view(net, node, name).is_some_and(|view| view.is_leader);
        names.iter().filter(is_leader).count()
    };
    let removed = (1..3).max_by_key(|node| leads(&net, *node)).unwrap();
    assert!(leads(&net, removed) > 0);
    remove_at(&mut net, 0, removed);
    net.run(SECOND * 10);
    for node in 0..3 {
        assert_eq!(
            health(&mut net, node)["status"],
            "ok",
            "{}",
            health(&mut net, node)
        );
    }
}

/// Takes a replica off a server, in the name of the user.
fn take_off(net: &mut Net, stream: &str, node: usize) {
    let body = format!(r#"{{"peer":"n{node}"}}"#);
    let answer = ask(net, "a", &format!("$JS.API.STREAM.PEER.REMOVE.{stream}"), &body);
    assert_eq!(answer["success"], true, "{answer}");
}

/// Two replicas are a majority only together: the one that is to go is needed until there is another one.
#[test]
fn a_replica_that_is_taken_off_a_server_is_needed_until_another_one_is_there() {
    for storage in ["file", "memory"] {
        let mut net = three();
        let body = format!(r#"{{"name":"S","subjects":["s"],"num_replicas":2,"storage":"{storage}"}}"#);
        let made = ask(&mut net, "a", "$JS.API.STREAM.CREATE.S", &body);
        assert_eq!(made["did_create"], true, "{made}");
        let mut messages = 0;
        for leads in [false, true, false] {
            messages += 1;
            assert_eq!(ask(&mut net, "a", "s", "x")["seq"], messages);
            let has = |net: &Net, node: &usize| view(net, *node, "S").is_some();
            let before: Vec<usize> = (0..3).filter(|node| has(&net, node)).collect();
            let goes = before.iter().copied();
            let mut goes = goes.filter(|node| view(&net, *node, "S").unwrap().is_leader == leads);
            let goes = goes.next().unwrap();
            take_off(&mut net, "S", goes);
            net.run(SECOND * 5);
            let after: Vec<usize> = (0..3).filter(|node| has(&net, node)).collect();
            assert!(
                after.len() == 2 && !after.contains(&goes),
                "{before:?} {goes} {after:?}"
            );
            let expected: Vec<_> = after.iter().map(|node| (format!("n{node}"), true)).collect();
            assert_eq!(replicas(&mut net, "S"), expected, "{storage}");
            let one = view(&net, after[0], "S").unwrap();
            assert_eq!((one.voters.len(), one.messages), (2, messages));
            assert_eq!(
                Some(one.digest),
                view(&net, after[1], "S").map(|other| other.digest)
            );
            for node in 0..3 {
                assert_eq!(health(&mut net, node)["status"], "ok");
            }
        }
    }
}

/// The one that is gone cannot vote for it: of three the other two do.
#[test]
fn a_replica_is_taken_off_a_server_that_is_down() {
    let mut net = Net::new();
    for node in 0..4 {
        net.add(WORKERS, &config_of(4, node));
    }
    net.run(SECOND * 5);
    make_at(&mut net, 0, "S", 3);
    let goes = (1..4).find(|node| view(&net, *node, "S").is_some()).unwrap();
    net.kill(goes);
    net.run(SECOND * 5);
    take_off(&mut net, "S", goes);
    net.run(SECOND * 8);
    let expected: Vec<_> = (0..4)
        .filter(|node| *node != goes)
        .map(|node| (format!("n{node}"), true))
        .collect();
    assert_eq!(replicas(&mut net, "S"), expected);
    net.restart(goes, WORKERS, &config_of(4, goes), 1);
    net.run(SECOND * 5);
    assert_eq!(view(&net, goes, "S"), None);
    assert_eq!(replicas(&mut net, "S"), expected);
    assert_eq!(ask(&mut net, "a", "S", "x")["seq"], 2);
}

/// There is nothing that the server of its only replica could have missed.
#[test]
fn a_stream_that_is_made_right_after_the_start_takes_what_is_published_at_once() {
    let mut net = Net::new();
    for node in 0..3 {
        net.add(WORKERS, &config(node));
    }
    let client = net.open(0, 0, Listener::Client);
    net.tell(
        client,
        "CONNECT {\"user\":\"a\",\"pass\":\"p\",\"verbose\":false}\r\nSUB in.* 1\r\n",
    );
    let until = |net: &mut Net, what: &str, steps: u32, again: &str| {
        let mut said = (0..steps).map(|_| {
            net.tell(client, again);
            net.run(SECOND / 50);
            net.hear(client)
        });
        assert!(said.any(|said| said.contains(what)), "{what}");
    };
    for name in ["one", "two", "three"] {
        let body = format!(r#"{{"name":"{name}","subjects":["{name}"],"num_replicas":1}}"#);
        let create = format!(
            "PUB $JS.API.STREAM.CREATE.{name} in.{name} {}\r\n{body}\r\n",
            body.len()
        );
        until(&mut net, "\"did_create\":true", 500, &create);
        until(&mut net, "\"seq\":1", 5, &format!("PUB {name} in.x 1\r\ny\r\n"));
    }
}

/// Its disk was replaced: it has another id, and the name and the configuration of before.
#[test]
fn a_server_that_comes_back_with_an_empty_store_takes_its_own_place() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    net.kill(2);
    net.run(SECOND * 3);
    let mut new = 0;
    let lines = net::log::said(|| {
        new = net.add(WORKERS, &config(3).replace("server_name: n3", "server_name: n2"));
        let first = health(&mut net, new);
        assert_eq!(first["status_code"], 503, "it has nothing yet: {first}");
        // Nor is it well before it has its replica again.
        let mut steps = 0;
        while health(&mut net, new)["status"] != "ok" {
            net.run(SECOND / 100);
            steps += 1;
            assert!(steps < 1_500, "{}", health(&mut net, new));
        }
        assert!(view(&net, new, "three").is_some_and(|view| view.messages == 1));
        net.run(SECOND * 15);
        assert_eq!(health(&mut net, new)["status"], "ok");
    });
    let said = lines
        .iter()
        .filter(|line| line.contains("has come back with an empty store"));
    assert_eq!(said.count(), 1);
    let names = replicas(&mut net, "three");
    let expected = ["n0", "n1", "n2"].map(|name| (name.to_owned(), true));
    assert_eq!(names, expected);
    let copies: Vec<ReplicaView> = [0, 1, new].map(|node| view(&net, node, "three").unwrap()).into();
    assert!(
        copies.iter().all(|one| one.digest == copies[0].digest),
        "{copies:?}"
    );
    assert_eq!(health(&mut net, new)["status"], "ok");
    let ack = ask_at(&mut net, new, "a", "three", "y");
    assert_eq!(ack["seq"], 2, "{ack}");
}

/// Whoever waits for it to go on with the next server would take the metadata a vote that it has not got back yet.
#[test]
fn a_server_with_an_empty_store_is_not_well_before_its_replica_of_the_metadata_votes() {
    let mut net = three();
    net.kill(2);
    net.run(SECOND * 3);
    let new = net.add(WORKERS, &config(3).replace("server_name: n3", "server_name: n2"));
    let meta = |net: &Net, node: usize| {
        let replicas = net.replicas(node).into_iter();
        replicas.into_iter().find(|view| view.group == GroupId::META)
    };
    let mut steps = 0;
    while health(&mut net, new)["status"] != "ok" {
        net.run(SECOND / 200);
        steps += 1;
        assert!(steps < 3_000, "{}", health(&mut net, new));
    }
    let mine = meta(&net, new).unwrap();
    assert!(mine.voters.contains(&mine.replica), "{mine:?}");
    net.kill(0);
    net.run(SECOND * 5);
    make_at(&mut net, 1, "one", 1);
}

/// Two servers of one name that both run: neither takes the place of the other.
#[test]
fn a_second_server_under_the_name_of_one_that_runs_takes_no_place() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    let before = view(&net, 2, "three").unwrap().replica;
    net.add(WORKERS, &config(3).replace("server_name: n3", "server_name: n2"));
    net.run(SECOND * 15);
    assert_eq!(view(&net, 2, "three").unwrap().replica, before);
}

#[test]
fn a_server_that_was_removed_while_it_was_cut_off_comes_in_again() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    for removed in 0..3 {
        let other = (removed + 1) % 3;
        let old = meta_replica(&net, removed);
        cut_off(&mut net, removed);
        net.run(SECOND * 6);
        remove_at(&mut net, other, removed);
        net.run(SECOND * 3);
        let ack = ask_at(&mut net, other, "a", "three", "y");
        assert_eq!(ack["seq"], removed + 2, "{ack}");
        net.heal();
        net.run(SECOND * 12);
        assert_whole(&mut net, &["three"], &format!("node {removed}"));
        assert!(meta_replica(&net, removed) > old);
        assert_serves(&mut net, removed, &format!("new{removed}"));
    }
}

#[test]
fn a_server_that_is_removed_while_it_runs_comes_in_again() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    // One of them leads the metadata, and one the stream.
    for removed in [0, 1, 2, 2] {
        let old = meta_replica(&net, removed);
        remove_at(&mut net, (removed + 1) % 3, removed);
        net.run(SECOND * 12);
        assert_whole(&mut net, &["three"], &format!("node {removed}"));
        assert!(meta_replica(&net, removed) > old);
        assert_serves(&mut net, removed, &format!("new{}", old.0));
    }
}

#[test]
fn one_of_two_servers_that_is_removed_while_it_runs_comes_in_again() {
    for removed in 0..2 {
        let mut net = Net::new();
        for node in 0..2 {
            net.add(WORKERS, &config_of(2, node));
        }
        net.run(SECOND * 5);
        make_at(&mut net, 0, "two", 2);
        let old = meta_replica(&net, removed);
        remove_at(&mut net, 1 - removed, removed);
        net.run(SECOND * 12);
        assert_whole(&mut net, &["two"], &format!("node {removed}"));
        assert!(meta_replica(&net, removed) > old);
    }
}

#[test]
fn a_removed_server_comes_in_whenever_it_is_stopped_on_the_way() {
    for moment in 0..16 {
        let mut net = without_the_third();
        net.restart(2, WORKERS, &config(2), 1);
        net.run(SECOND * moment / 20);
        net.kill(2);
        net.run(SECOND);
        net.restart(2, WORKERS, &config(2), 2);
        net.run(SECOND * 10);
        assert_whole(&mut net, &["three"], &format!("stopped at {moment}"));
    }
}

#[test]
fn a_removed_server_that_meets_no_majority_keeps_what_it_has() {
    let mut net = without_the_third();
    let leads = |net: &Net, node| view(net, node, "_meta_").is_some_and(|meta| meta.is_leader);
    let leader = usize::from(leads(&net, 1));
    net.kill(leader);
    net.run(SECOND * 6);
    let files = net.nodes[2].disk.as_ref().unwrap().files();
    net.restart(2, WORKERS, &config(2), 1);
    let old = meta_replica(&net, 2);
    net.run(SECOND * 30);
    assert_eq!(meta_replica(&net, 2), old);
    assert!(view(&net, 2, "three").is_some());
    let after = net.nodes[2].disk.as_ref().unwrap().files();
    for (file, len) in files {
        let kept = after.iter().any(|(other, now)| *other == file && *now >= len);
        assert!(kept, "{file}");
    }
    net.restart(leader, WORKERS, &config(leader), 1);
    net.run(SECOND * 15);
    assert_whole(&mut net, &["three"], "a majority");
    assert!(meta_replica(&net, 2) > old);
}

#[test]
fn a_removed_server_keeps_its_replica_until_those_that_stay_can_do_without() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    let leader = (0..3)
        .find(|node| view(&net, *node, "_meta_").unwrap().is_leader)
        .unwrap();
    let (removed, slow) = ((leader + 1) % 3, (leader + 2) % 3);
    let old = meta_replica(&net, removed);
    // The leader and the removed one are a majority of the three, and take the removal; of the two that stay one has not
    // got it.
    net.hold_disk(slow, true);
    remove_at(&mut net, leader, removed);
    net.run(SECOND);
    assert_eq!(view(&net, leader, "_meta_").unwrap().voters.len(), 2);
    assert_eq!(meta_replica(&net, removed), old);
    net.hold_disk(slow, false);
    net.run(SECOND * 12);
    assert_whole(&mut net, &["three"], "the disk goes on");
    assert!(meta_replica(&net, removed) > old);
}

#[test]
fn a_removed_server_whose_replica_still_votes_keeps_it() {
    let mut net = three();
    let leader = (0..3)
        .find(|node| view(&net, *node, "_meta_").unwrap().is_leader)
        .unwrap();
    let removed = (leader + 1) % 3;
    let old = meta_replica(&net, removed);
    // Nobody is taken out of the group while a server that is to vote has not caught up; this one never does.
    net.add(WORKERS, &config(3));
    net.hold_disk(3, true);
    net.run(SECOND * 3);
    net.kill(3);
    net.run(SECOND * 6);
    remove_at(&mut net, leader, removed);
    net.run(SECOND * 6);
    assert!(view(&net, leader, "_meta_").unwrap().voters.contains(&old));
    assert_eq!(meta_replica(&net, removed), old);
    remove_at(&mut net, leader, 3);
    net.nodes.pop();
    net.run(SECOND * 12);
    assert_whole(&mut net, &[], "the other is gone");
    assert!(meta_replica(&net, removed) > old);
}

#[test]
fn a_server_that_is_removed_before_it_is_noticed_that_it_is_gone_stays_out() {
    let mut net = three();
    let removed = (1..3)
        .find(|node| !view(&net, *node, "_meta_").unwrap().is_leader)
        .unwrap();
    let other = 3 - removed;
    cut_off(&mut net, removed);
    remove_at(&mut net, other, removed);
    net.run(SECOND * 60);
    for node in [0, other] {
        let meta = view(&net, node, "_meta_").unwrap();
        assert_eq!((meta.listed.len(), meta.voters.len()), (2, 2), "{meta:?}");
        assert!(meta.learners.is_empty(), "{meta:?}");
    }
    net.heal();
    net.run(SECOND * 12);
    assert_whole(&mut net, &[], "healed");
}

#[test]
fn a_server_that_is_merely_behind_keeps_its_replica() {
    let mut net = three();
    make_at(&mut net, 0, "three", 3);
    let old: Vec<ReplicaId> = (0..3).map(|node| meta_replica(&net, node)).collect();
    for behind in 0..3 {
        let other = (behind + 1) % 3;
        cut_off(&mut net, behind);
        net.run(SECOND * 6);
        for n in 0..5 {
            make_at(&mut net, other, &format!("more{behind}{n}"), 1);
        }
        net.heal();
        net.run(SECOND * 12);
        assert_whole(&mut net, &["three"], &format!("node {behind}"));
    }
    let new: Vec<ReplicaId> = (0..3).map(|node| meta_replica(&net, node)).collect();
    assert_eq!(old, new);
}
