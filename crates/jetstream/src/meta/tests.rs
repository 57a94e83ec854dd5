use super::*;
use proptest::prelude::*;

/// Effects as lines of text.
#[derive(Default)]
struct Lines(Vec<String>);

impl MetaEffects for Lines {
    fn replied(&mut self, ordinal: u32, outcome: &MetaOutcome) {
        let outcome = match outcome {
            MetaOutcome::Refused(error) => format!("{} {}", error.code.err_code(), error.description),
            other => format!("{other:?}"),
        };
        self.0.push(format!("{ordinal}: {outcome}"));
    }
    fn replica_start(&mut self, stream: &StreamEntry, replica: &Replica) {
        self.0.push(format!(
            "start {} {}/{} on {}",
            stream.spec.name, stream.group, replica.id, replica.node
        ));
    }
    fn replica_stop(&mut self, group: GroupId, replica: &Replica) {
        self.0
            .push(format!("stop {group}/{} on {}", replica.id, replica.node));
    }
    fn stream_changed(&mut self, stream: &StreamEntry) {
        let voters = stream
            .replicas
            .iter()
            .filter(|replica| replica.role == ReplicaRole::Voter)
            .count();
        self.0.push(format!(
            "changed {} rev {} {:?} voters {voters} of {}{}",
            stream.spec.name,
            stream.rev,
            stream.state,
            stream.replicas.len(),
            if stream.pending.is_some() { " pending" } else { "" }
        ));
    }
    fn stream_removed(&mut self, stream: &StreamEntry) {
        self.0.push(format!("removed {}", stream.spec.name));
    }
    fn server_changed(&mut self, server: &Server) {
        self.0.push(format!(
            "server {} meta {}",
            server.spec.name, server.meta_replica
        ));
    }
    fn server_removed(&mut self, server: &Server) {
        self.0.push(format!("server {} left", server.spec.name));
    }
}

fn server(id: u64, tags: &[&str]) -> ServerSpec {
    ServerSpec {
        id: NodeId(id),
        name: format!("n{id}"),
        addresses: Vec::new(),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        apply_version: 1,
    }
}

fn cluster_of_three() -> Meta {
    let tags = [&["az:a"][..], &["az:b", "ssd"], &["az:b"]];
    Meta::found(
        ClusterId(5),
        (1..)
            .zip(tags)
            .map(|(id, tags)| (server(id, tags), BootId(u128::from(id)))),
        Wall(100),
    )
}

fn hint(online: &[u64]) -> PlacementHint {
    PlacementHint {
        cluster: "test".to_owned(),
        candidates: (1..=5)
            .map(|id| Candidate {
                node: NodeId(id),
                online: online.contains(&id),
                file_bytes: 1_000,
                memory_bytes: 1_000,
            })
            .collect(),
        unique_tag: None,
    }
}

/// An encoded configuration; of a field that is there twice the last one counts.
fn config(name: &str, subjects: &[&str], more: &str) -> String {
    let limits = [
        "max_consumers",
        "max_msgs",
        "max_bytes",
        "max_msgs_per_subject",
        "max_msg_size",
    ];
    let limits: String = limits.iter().map(|limit| format!(r#""{limit}":-1,"#)).collect();
    format!(r#"{{"name":"{name}","subjects":{subjects:?},{limits}"num_replicas":1{more}}}"#)
}

fn create(name: &str, subjects: &[&str], more: &str) -> MetaCommand {
    MetaCommand::StreamCreate {
        account: "A".to_owned(),
        config: config(name, subjects, more),
        limits: AccountLimits::default(),
        hint: hint(&[1, 2, 3]),
    }
}

fn apply(meta: &mut Meta, commands: Vec<MetaCommand>) -> Vec<String> {
    let mut lines = Lines::default();
    let entry = MetaEntry {
        stamp: Wall(1_000),
        commands,
    };
    meta.apply(meta.applied().next(), &entry.encode(), &mut lines)
        .unwrap();
    assert_eq!(Meta::restore(&meta.checkpoint()).as_ref(), Ok(&*meta));
    lines.0
}

#[test]
fn a_stream_is_created_formed_and_deleted() {
    let mut meta = cluster_of_three();
    let made = apply(&mut meta, vec![create("S", &["s.>"], r#","num_replicas":3"#)]);
    assert_eq!(
        made,
        [
            "start S 2/4 on 1",
            "start S 2/5 on 2",
            "start S 2/6 on 3",
            "changed S rev 1 Forming voters 3 of 3",
            "0: Stream { group: GroupId(2), created: true }",
        ]
    );
    let formed = MetaCommand::GroupFormed { group: GroupId(2) };
    assert_eq!(
        apply(&mut meta, vec![formed]),
        ["changed S rev 1 Formed voters 3 of 3", "0: Done"]
    );

    // The same again is no error; another configuration is; subjects of two streams never meet.
    let again = apply(
        &mut meta,
        vec![
            create("S", &["s.>"], r#","num_replicas":3"#),
            create("S", &["s.*"], ""),
            create("T", &["*.x"], ""),
        ],
    );
    assert_eq!(
        again,
        [
            "0: Stream { group: GroupId(2), created: false }",
            "1: 10058 stream name already in use with a different configuration",
            "2: 10065 subjects overlap with an existing stream",
        ]
    );

    let delete = || MetaCommand::StreamDelete {
        account: "A".to_owned(),
        name: "S".to_owned(),
    };
    let gone = apply(&mut meta, vec![delete(), delete()]);
    assert_eq!(
        gone,
        [
            "stop 2/4 on 1",
            "stop 2/5 on 2",
            "stop 2/6 on 3",
            "removed S",
            "0: Deleted { streams: 1 }",
            "1: 10059 stream not found",
        ]
    );
    assert!(meta.group_was_made(GroupId(2)) && meta.stream_of_group(GroupId(2)).is_none());
}

#[test]
fn an_update_reserves_the_union_until_the_stream_has_decided() {
    let mut meta = cluster_of_three();
    apply(&mut meta, vec![create("S", &["old"], "")]);
    let begin = |rev| MetaCommand::UpdateBegin {
        account: "A".to_owned(),
        config: config("S", &["new"], ""),
        rev,
        limits: AccountLimits::default(),
    };
    let group = GroupId(2);
    let lines = apply(
        &mut meta,
        vec![
            begin(7),
            begin(1),
            begin(1),
            create("T", &["new"], ""),
            create("U", &["old"], ""),
        ],
    );
    assert_eq!(
        lines,
        [
            "0: Conflict",
            "changed S rev 1 Forming voters 1 of 1 pending",
            "1: Update { group: GroupId(2), rev: 2 }",
            "2: 10226 stream reconfiguration already in progress",
            "3: 10065 subjects overlap with an existing stream",
            "4: 10065 subjects overlap with an existing stream",
        ]
    );
    let end = apply(
        &mut meta,
        vec![
            MetaCommand::UpdateFinish { group, rev: 2 },
            MetaCommand::UpdateFinish { group, rev: 2 },
            create("U", &["old"], ""),
        ],
    );
    assert_eq!(
        end[..3],
        ["changed S rev 2 Forming voters 1 of 1", "0: Done", "1: Done"]
    );
    assert_eq!(meta.stream("A", "S").unwrap().spec.subjects[0].as_bytes(), b"new");
    assert_eq!(meta.stream("A", "U").unwrap().group, GroupId(3));

    // A refused revision is used up, and the old configuration stands.
    let begin = MetaCommand::UpdateBegin {
        account: "A".to_owned(),
        config: config("S", &["third"], ""),
        rev: 2,
        limits: AccountLimits::default(),
    };
    apply(
        &mut meta,
        vec![begin, MetaCommand::UpdateRevert { group, rev: 3 }],
    );
    let stream = meta.stream("A", "S").unwrap();
    assert_eq!(
        (
            stream.rev,
            stream.pending.is_none(),
            stream.spec.subjects[0].as_bytes()
        ),
        (3, true, &b"new"[..])
    );
}

/// A server without a cluster has nobody to choose from: it takes what was written for a cluster.
#[test]
fn a_server_alone_takes_any_placement() {
    let mut meta = cluster_of_three();
    let alone = PlacementHint {
        cluster: String::new(),
        candidates: hint(&[1]).candidates.into_iter().take(1).collect(),
        unique_tag: Some("rack:".to_owned()),
    };
    let create = |name: &str, placement: &str| MetaCommand::StreamCreate {
        account: "A".to_owned(),
        config: config(name, &[], placement),
        limits: AccountLimits::default(),
        hint: alone.clone(),
    };
    let lines = apply(
        &mut meta,
        vec![
            create("a", r#","placement":{"cluster":"other"}"#),
            create("b", r#","placement":{"tags":["gpu","!az:a"]}"#),
        ],
    );
    assert!(lines.iter().all(|line| !line.contains("10005")), "{lines:?}");
    assert!(meta.stream("A", "a").is_some() && meta.stream("A", "b").is_some());
}

/// The replicas of a server that leaves are given up where the others are a majority. Where they are not, they are what
/// is left of the stream.
#[test]
fn replicas_of_a_server_that_leaves_are_given_up() {
    let mut meta = cluster_of_three();
    let create = |name: &str, replicas: u8| MetaCommand::StreamCreate {
        account: "A".to_owned(),
        config: config(name, &[], &format!(r#","num_replicas":{replicas}"#)),
        limits: AccountLimits::default(),
        hint: hint(&[1, 2, 3]),
    };
    let streams = ["one", "two", "three"];
    apply(
        &mut meta,
        (1..)
            .zip(streams)
            .map(|(count, name)| create(name, count))
            .collect(),
    );
    let node = NodeId(2);
    apply(&mut meta, vec![MetaCommand::ServerLeave { node }]);
    let lost = |name: &str| -> Vec<NodeId> {
        let replicas = &meta.stream("A", name).unwrap().replicas;
        replicas
            .iter()
            .filter(|one| one.lost)
            .map(|one| one.node)
            .collect()
    };
    assert_eq!(streams.map(lost), [vec![], vec![], vec![node]]);
}

#[test]
fn placement_says_why_it_fails() {
    let mut meta = cluster_of_three();
    let with = |name: &str, more: &str, hint: PlacementHint| MetaCommand::StreamCreate {
        account: "A".to_owned(),
        config: config(name, &[], more),
        limits: AccountLimits {
            max_storage: Some(5_000),
            max_streams: Some(2),
            ..AccountLimits::default()
        },
        hint,
    };
    let unique = PlacementHint {
        unique_tag: Some("az:".to_owned()),
        ..hint(&[1, 2, 3])
    };
    let lines = apply(
        &mut meta,
        vec![
            with("a", r#","num_replicas":3"#, hint(&[1])),
            with("a", r#","placement":{"tags":["ssd","gpu"]}"#, hint(&[1, 2, 3])),
            with(
                "a",
                r#","placement":{"tags":["!az:b"]},"num_replicas":2"#,
                hint(&[1, 2, 3]),
            ),
            with("a", r#","max_bytes":1001"#, hint(&[1, 2, 3])),
            with("a", r#","max_bytes":5001"#, hint(&[1, 2, 3])),
            with("a", r#","num_replicas":3"#, unique),
            with("a", r#","placement":{"cluster":"other"}"#, hint(&[1, 2, 3])),
        ],
    );
    assert_eq!(
        lines,
        [
            "0: 10005 no suitable peers for placement, peer offline",
            "1: 10005 no suitable peers for placement, tags not matched ['gpu', 'ssd']",
            "2: 10005 no suitable peers for placement, tags excluded ['az:b']",
            "3: 10005 no suitable peers for placement, insufficient storage",
            "4: 10047 insufficient storage resources available",
            "5: 10005 no suitable peers for placement, server tag not unique",
            "6: 10005 no suitable peers for placement",
        ]
    );
    // One of three may be away. The replicas go where the fewest are.
    apply(
        &mut meta,
        vec![
            with("a", r#","num_replicas":3"#, hint(&[1, 3])),
            with("b", "", hint(&[2, 3])),
        ],
    );
    assert_eq!(meta.stream("A", "b").unwrap().replicas[0].node, NodeId(2));
    let third = apply(&mut meta, vec![with("c", "", hint(&[1, 2, 3]))]);
    assert_eq!(third, ["0: 10027 maximum number of streams reached"]);
}

#[test]
fn replicas_are_replaced_one_by_one_and_ids_never_come_back() {
    let mut meta = cluster_of_three();
    apply(&mut meta, vec![create("S", &["s"], r#","num_replicas":2"#)]);
    let group = GroupId(2);
    let add = |node| MetaCommand::ReplicaAdd {
        group,
        node,
        hint: hint(&[1, 2, 3]),
    };
    let remove = |id| MetaCommand::ReplicaRemove {
        group,
        replica: ReplicaId(id),
        again: true,
    };
    let lines = apply(
        &mut meta,
        vec![
            add(None),
            MetaCommand::ReplicaPromote {
                group,
                replica: ReplicaId(6),
            },
            remove(4),
            add(Some(NodeId(2))),
            remove(5),
            remove(6),
            add(Some(NodeId(9))),
        ],
    );
    assert_eq!(
        lines,
        [
            "start S 2/6 on 3",
            "changed S rev 1 Forming voters 2 of 3",
            "0: Replica { replica: Replica { id: ReplicaId(6), node: NodeId(3), role: Learner, present: None, lost: false } }",
            "changed S rev 1 Forming voters 3 of 3",
            "1: Done",
            "stop 2/4 on 1",
            "changed S rev 1 Forming voters 2 of 2",
            "2: Done",
            "start S 2/7 on 2",
            "changed S rev 1 Forming voters 2 of 3",
            "3: Replica { replica: Replica { id: ReplicaId(7), node: NodeId(2), role: Learner, present: None, lost: false } }",
            "stop 2/5 on 2",
            "changed S rev 1 Forming voters 1 of 2",
            "4: Done",
            "5: 10075 peer remap failed",
            "6: 10044 server is not a member of the cluster",
        ]
    );
    let reform = MetaCommand::GroupReform {
        group,
        hint: hint(&[1, 2]),
    };
    assert_eq!(
        apply(&mut meta, vec![reform]).last().map(String::as_str),
        Some("0: Stream { group: GroupId(3), created: true }")
    );
    let ids: Vec<u64> = meta
        .stream("A", "S")
        .unwrap()
        .replicas
        .iter()
        .map(|replica| replica.id.0)
        .collect();
    assert_eq!((ids, meta.stream_of_group(group).is_none()), (vec![8, 9], true));
}

#[test]
fn the_first_record_of_a_replica_counts_and_only_what_was_recorded_is_lost() {
    let mut meta = cluster_of_three();
    apply(&mut meta, vec![create("S", &["s"], r#","num_replicas":3"#)]);
    let group = GroupId(2);
    let present = |replica, boot| MetaCommand::ReplicasPresent {
        group,
        replicas: vec![ReplicaId(replica)],
        boot: BootId(boot),
    };
    let lost = |replica| MetaCommand::ReplicaLost {
        group,
        replica: ReplicaId(replica),
    };
    let changed = "changed S rev 1 Forming voters 3 of 3";
    assert_eq!(
        apply(
            &mut meta,
            vec![
                lost(4),
                present(4, 10),
                present(4, 11),
                lost(4),
                present(4, 11),
                lost(9)
            ]
        ),
        [
            "0: Done",
            changed,
            "1: Done",
            "2: Done",
            changed,
            "3: Done",
            "4: Done",
            "5: 10040 peer not a member"
        ]
    );
    let entry = meta.stream("A", "S").unwrap();
    assert_eq!(
        (entry.replicas[0].present, entry.replicas[0].lost),
        (Some(BootId(10)), true)
    );
    assert!(!entry.has_lost_majority());
    apply(&mut meta, vec![present(5, 12), lost(5)]);
    let entry = meta.stream("A", "S").unwrap();
    assert!(entry.has_lost_majority() && !meta.has_nothing_left(entry, |_| true));
}

#[test]
fn a_memory_stream_of_one_replica_is_made_anew_and_one_that_lost_all_is_formed_anew() {
    let mut meta = cluster_of_three();
    let memory = r#","storage":"memory","num_replicas":1"#;
    apply(&mut meta, vec![create("M", &["m"], memory)]);
    let group = GroupId(2);
    let present = |boot| MetaCommand::ReplicasPresent {
        group,
        replicas: vec![ReplicaId(4)],
        boot: BootId(boot),
    };
    let lost = MetaCommand::ReplicaLost {
        group,
        replica: ReplicaId(4),
    };
    let reform = MetaCommand::GroupReform {
        group,
        hint: hint(&[1, 2, 3]),
    };
    apply(
        &mut meta,
        vec![
            present(10),
            MetaCommand::GroupFormed { group },
            lost.clone(),
            present(11),
        ],
    );
    let replica = meta.stream("A", "M").unwrap().replicas[0];
    assert_eq!((replica.present, replica.lost), (Some(BootId(11)), false));
    assert_eq!(
        apply(&mut meta, vec![reform.clone(), lost, reform]),
        [
            "0: Conflict",
            "changed M rev 1 Formed voters 1 of 1",
            "1: Done",
            "stop 2/4 on 1",
            "removed M",
            "start M 3/5 on 1",
            "changed M rev 1 Forming voters 1 of 1",
            "2: Stream { group: GroupId(3), created: true }"
        ]
    );
}

/// A stream of so many replicas, present and formed.
fn formed(meta: &mut Meta, name: &str, more: &str, replicas: usize) -> (GroupId, Vec<ReplicaId>) {
    for id in 4..=u64::try_from(replicas).unwrap() {
        let (server, boot) = (server(id, &[]), BootId(id.into()));
        apply(meta, vec![MetaCommand::ServerJoin { server, boot }]);
    }
    let create = MetaCommand::StreamCreate {
        account: "A".to_owned(),
        config: config(name, &["m"], &format!("{more},\"num_replicas\":{replicas}")),
        limits: AccountLimits::default(),
        hint: hint(&[1, 2, 3, 4, 5]),
    };
    apply(meta, vec![create]);
    let stream = meta.stream("A", name).unwrap();
    let group = stream.group;
    let replicas: Vec<ReplicaId> = stream.replicas.iter().map(|one| one.id).collect();
    let present = MetaCommand::ReplicasPresent {
        group,
        replicas: replicas.clone(),
        boot: BootId(9),
    };
    apply(meta, vec![present, MetaCommand::GroupFormed { group }]);
    (group, replicas)
}

fn survives(group: GroupId, replica: ReplicaId, term: u64, index: u64) -> MetaCommand {
    let survivor = Survivor { replica, term, index };
    MetaCommand::ReplicaSurvives { group, survivor }
}

#[test]
fn a_memory_stream_goes_on_from_the_longest_log_that_is_left() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 5);
    let lost = |n: usize| MetaCommand::ReplicaLost {
        group,
        replica: ids[n],
    };
    let left = |n: usize, term, index| survives(group, ids[n], term, index);
    assert_eq!(
        apply(&mut meta, vec![left(0, 3, 9)]),
        ["0: Done"],
        "nobody is lost"
    );
    apply(&mut meta, vec![lost(1), lost(2)]);
    // What was said before somebody was lost counts no more, and one of those that are left is silent.
    let lines = apply(
        &mut meta,
        vec![left(0, 3, 9), left(4, 4, 7), left(4, 4, 8), left(1, 9, 9)],
    );
    assert_eq!(lines, ["0: Done", "1: Done", "2: Done", "3: Conflict"]);
    let restored = Meta::restore(&meta.checkpoint()).unwrap();
    assert_eq!(restored.stream("A", "M"), meta.stream("A", "M"));
    apply(&mut meta, vec![lost(3)]);
    let lines = apply(&mut meta, vec![left(4, 4, 8), left(0, 3, 9)]);
    let entry = meta.stream("A", "M").unwrap();
    assert_eq!(
        (entry.replicas.len(), entry.replicas[0].id, entry.state),
        (1, ids[4], GroupState::Rescued)
    );
    assert_eq!(
        lines.iter().filter(|line| line.starts_with("stop")).count(),
        4,
        "{lines:?}"
    );
    assert!(entry.survivors.is_empty());
    assert_eq!(
        apply(&mut meta, vec![left(4, 4, 8)]),
        ["0: Conflict"],
        "it is over"
    );
    apply(&mut meta, vec![MetaCommand::GroupFormed { group }]);
    assert_eq!(meta.stream("A", "M").unwrap().state, GroupState::Formed);
}

#[test]
fn a_memory_stream_of_which_only_what_is_new_is_left_is_formed_anew() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 3);
    for replica in [ids[0], ids[1]] {
        apply(&mut meta, vec![MetaCommand::ReplicaLost { group, replica }]);
    }
    apply(&mut meta, vec![survives(group, ids[2], 1, 1)]);
    let entry = meta.stream("A", "M").unwrap();
    assert!(meta.has_nothing_left(entry, |_| true) && entry.state == GroupState::Formed);
}

#[test]
fn a_memory_stream_does_not_wait_for_a_replica_that_was_never_there() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 2);
    let hint = hint(&[1, 2, 3]);
    let node = None;
    apply(&mut meta, vec![MetaCommand::ReplicaAdd { group, node, hint }]);
    let lost = MetaCommand::ReplicaLost {
        group,
        replica: ids[1],
    };
    apply(&mut meta, vec![lost, survives(group, ids[0], 1, 5)]);
    let entry = meta.stream("A", "M").unwrap();
    assert_eq!((entry.state, entry.replicas.len()), (GroupState::Rescued, 1));
}

/// It may have all of it by now.
#[test]
fn a_memory_stream_goes_on_from_a_replica_that_is_being_added() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 2);
    let (hint, node) = (hint(&[1, 2, 3]), None);
    let add = MetaCommand::ReplicaAdd {
        group,
        node,
        hint: hint.clone(),
    };
    apply(&mut meta, vec![add]);
    let added = meta.stream("A", "M").unwrap().replicas[2].id;
    let present = MetaCommand::ReplicasPresent {
        group,
        replicas: vec![added],
        boot: BootId(7),
    };
    apply(&mut meta, vec![present]);
    for replica in [ids[0], ids[1]] {
        apply(&mut meta, vec![MetaCommand::ReplicaLost { group, replica }]);
    }
    assert!(!meta.has_nothing_left(meta.stream("A", "M").unwrap(), |_| true));
    let reform = MetaCommand::GroupReform { group, hint };
    assert_eq!(apply(&mut meta, vec![reform]), ["0: Conflict"]);
    apply(&mut meta, vec![survives(group, added, 1, 5)]);
    let entry = meta.stream("A", "M").unwrap();
    let left = (entry.state, entry.replicas.len(), entry.replicas[0].role);
    assert_eq!(left, (GroupState::Rescued, 1, ReplicaRole::Voter));
}

#[test]
fn a_memory_stream_does_not_wait_for_a_server_that_was_removed() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 3);
    let nodes: Vec<NodeId> = meta.stream("A", "M").unwrap().nodes().collect();
    apply(
        &mut meta,
        vec![
            MetaCommand::ReplicaLost {
                group,
                replica: ids[1],
            },
            MetaCommand::ServerLeave { node: nodes[2] },
        ],
    );
    let entry = meta.stream("A", "M").unwrap();
    assert!(entry.replicas[2].lost && !meta.has_nothing_left(entry, |_| true));
    apply(&mut meta, vec![survives(group, ids[0], 1, 5)]);
    assert_eq!(meta.stream("A", "M").unwrap().state, GroupState::Rescued);
}

#[test]
fn a_server_that_is_there_gets_another_replica_for_the_one_that_it_has_lost() {
    for (lost, again) in [(true, true), (true, false), (false, true)] {
        let mut meta = cluster_of_three();
        let (group, ids) = formed(&mut meta, "M", r#","storage":"memory""#, 3);
        let replica = ids[1];
        let node = meta.stream("A", "M").unwrap().replica(replica).unwrap().node;
        if lost {
            apply(&mut meta, vec![MetaCommand::ReplicaLost { group, replica }]);
        }
        let remove = MetaCommand::ReplicaRemove {
            group,
            replica,
            again,
        };
        apply(&mut meta, vec![remove]);
        let entry = meta.stream("A", "M").unwrap();
        let new = entry.replicas.iter().find(|one| one.node == node);
        let is_new = |one: &Replica| one.role == ReplicaRole::Learner && !one.lost && one.id != replica;
        assert_eq!(new.map(is_new), (lost && again).then_some(true), "{entry:?}");
    }
}

#[test]
fn a_memory_stream_whose_only_server_was_removed_is_formed_anew_on_another() {
    let reform = |name: &str, more: &str| {
        let meta = &mut cluster_of_three();
        let (group, _) = formed(meta, name, more, 1);
        let node = meta.stream("A", name).unwrap().replicas[0].node;
        let all = hint(&[1, 2, 3]);
        let candidates = all.candidates.into_iter().filter(|one| one.node != node);
        let hint = PlacementHint {
            candidates: candidates.collect(),
            ..all
        };
        let reform = MetaCommand::GroupReform { group, hint };
        let before = apply(meta, vec![reform.clone()]);
        apply(meta, vec![MetaCommand::ServerLeave { node }]);
        let is_left = |is_gone: bool| !meta.has_nothing_left(meta.stream("A", name).unwrap(), |_| is_gone);
        let left = (is_left(false), is_left(true));
        let after = apply(meta, vec![reform]);
        let now = meta.stream("A", name).unwrap().replicas[0].node;
        (before, left, after, now != node)
    };
    let conflict = vec!["0: Conflict".to_owned()];
    let (before, left, after, moved) = reform("M", r#","storage":"memory""#);
    assert_eq!(
        (before, left, moved),
        (conflict.clone(), (true, false), true),
        "{after:?}"
    );
    // What is on a disk may come back.
    let on_disk = reform("S", "");
    assert_eq!(on_disk, (conflict.clone(), (true, true), conflict, false));
}

#[test]
fn a_stream_on_disk_does_not_go_on_from_a_minority() {
    let mut meta = cluster_of_three();
    let (group, ids) = formed(&mut meta, "S", "", 3);
    for replica in [ids[1], ids[2]] {
        apply(&mut meta, vec![MetaCommand::ReplicaLost { group, replica }]);
    }
    assert_eq!(
        apply(&mut meta, vec![survives(group, ids[0], 3, 9)]),
        ["0: Conflict"]
    );
    assert_eq!(meta.stream("A", "S").unwrap().replicas.len(), 3);
}

#[test]
fn servers_keep_their_meta_replica_until_it_is_lost() {
    let mut meta = cluster_of_three();
    let lines = apply(
        &mut meta,
        vec![
            MetaCommand::ServerJoin {
                server: server(4, &[]),
                boot: BootId(40),
            },
            MetaCommand::ServerJoin {
                server: server(4, &["x"]),
                boot: BootId(41),
            },
            MetaCommand::MetaReplicaReplace {
                node: NodeId(4),
                boot: BootId(40),
            },
            MetaCommand::MetaReplicaReplace {
                node: NodeId(4),
                boot: BootId(42),
            },
            MetaCommand::MetaReplicaReplace {
                node: NodeId(4),
                boot: BootId(42),
            },
            MetaCommand::ServerUpdate {
                server: server(8, &[]),
            },
            MetaCommand::ServerLeave { node: NodeId(1) },
        ],
    );
    assert_eq!(
        lines,
        [
            "server n4 meta 4",
            "0: Server { meta_replica: ReplicaId(4) }",
            "server n4 meta 4",
            "1: Server { meta_replica: ReplicaId(4) }",
            "2: Server { meta_replica: ReplicaId(4) }",
            "server n4 meta 5",
            "3: Server { meta_replica: ReplicaId(5) }",
            "4: Server { meta_replica: ReplicaId(5) }",
            "5: 10044 server is not a member of the cluster",
            "server n1 left",
            "6: Done",
        ]
    );
}

#[test]
fn what_cannot_be_read_changes_nothing() {
    let mut meta = cluster_of_three();
    let before = meta.digest();
    let mut lines = Lines::default();
    let broken = MetaEntry {
        stamp: Wall(1),
        commands: vec![
            create("S", &["s"], ""),
            MetaCommand::StreamCreate {
                account: "A".to_owned(),
                config: "{}".to_owned(),
                limits: AccountLimits::default(),
                hint: PlacementHint::default(),
            },
        ],
    };
    let result = meta.apply(LogIndex(2), &broken.encode(), &mut lines);
    assert!(matches!(result, Err(MetaError::Config(_))), "{result:?}");
    assert_eq!(
        meta.apply(LogIndex(2), b"\x09{}", &mut lines),
        Err(MetaError::Version(9))
    );
    let order = meta.apply(LogIndex(1), &broken.encode(), &mut lines);
    assert!(matches!(order, Err(MetaError::OutOfOrder { .. })), "{order:?}");
    assert_eq!((meta.digest(), lines.0.len()), (before, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any mix of commands: what the checkpoint brings back is the same and goes the same way; ids are unique; no
    /// two streams of an account overlap.
    #[test]
    fn invariants_hold_under_any_commands(steps in prop::collection::vec((0u8..14, 0u64..6, 1u64..4), 1..40)) {
        let mut meta = cluster_of_three();
        let mut twin = meta.clone();
        for (kind, a, b) in steps {
            let (group, replica) = (GroupId(a + 2), ReplicaId(a + b + 3));
            let name = ["S", "T", "U"][usize::try_from(b).unwrap() - 1];
            let command = match kind {
                0..=2 => create(name, &[["s.a", "s.*", "t", "u.>", "u.x", ">"][usize::try_from(a).unwrap()]], &format!(r#","num_replicas":{b}"#)),
                3 => MetaCommand::StreamDelete { account: "A".to_owned(), name: name.to_owned() },
                4 => MetaCommand::ReplicaAdd { group, node: (a > 3).then_some(NodeId(b)), hint: hint(&[1, 2, 3]) },
                5 => MetaCommand::ReplicaPromote { group, replica },
                6 => MetaCommand::ReplicaRemove { group, replica, again: a > 2 },
                7 => MetaCommand::UpdateBegin { account: "A".to_owned(), config: config(name, &["s.b"], ""), rev: a, limits: AccountLimits::default() },
                8 => MetaCommand::UpdateFinish { group, rev: b },
                9 => MetaCommand::ReplicasPresent { group, replicas: vec![replica], boot: BootId(u128::from(b)) },
                10 => MetaCommand::ReplicaLost { group, replica },
                11 => MetaCommand::ReplicaSurvives { group, survivor: Survivor { replica, term: a, index: b } },
                12 => MetaCommand::ReplicaReplace { group, replica, hint: hint(&[1, 2, 3]) },
                _ => MetaCommand::GroupReform { group, hint: hint(&[1, 2, 3]) },
            };
            apply(&mut meta, vec![command.clone()]);
            twin = Meta::restore(&twin.checkpoint()).unwrap();
            apply(&mut twin, vec![command]);
            prop_assert_eq!(meta.digest(), twin.digest());

            let mut ids: Vec<u64> = meta.streams().flat_map(|stream| stream.replicas.iter().map(|replica| replica.id.0)).collect();
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), count);
            for one in meta.streams() {
                prop_assert_eq!(meta.stream_of_group(one.group), Some(one));
                prop_assert!(one.replicas.iter().any(|replica| replica.role == ReplicaRole::Voter));
                for other in meta.streams().filter(|other| other.group != one.group) {
                    prop_assert!(!one.spec.overlaps(&other.spec));
                }
            }
        }
    }
}
