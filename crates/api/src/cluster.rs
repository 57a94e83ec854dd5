//! The `cluster` block of streams and consumers.

use crate::json::{decodable, is_zero};
use crate::{Nanos, Placement, Retention, Time};
use serde::Serialize;

/// Where a replicated asset lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterInfo {
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// Name of the raft group; replicated assets only.
    #[serde(skip_serializing_if = "is_zero")]
    pub raft_group: String,
    /// Name of the server that leads.
    #[serde(skip_serializing_if = "is_zero")]
    pub leader: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_since: Option<Time>,
    /// Its traffic goes through the system account.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_account: bool,
    /// Account of its traffic.
    #[serde(skip_serializing_if = "is_zero")]
    pub traffic_account: String,
    /// The others, by name.
    #[serde(skip_serializing_if = "is_zero")]
    pub replicas: Vec<PeerInfo>,
    /// What a move, scale or retention change is heading for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired: Option<DesiredInfo>,
}

decodable!(ClusterInfo as "ClusterInfo" {
    name, raft_group, leader, leader_since, system_account, traffic_account, replicas, desired,
});

/// One server of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerInfo {
    /// Its name.
    pub name: String,
    /// It is up to date.
    pub current: bool,
    /// It is not connected.
    #[serde(skip_serializing_if = "is_zero")]
    pub offline: bool,
    /// Time since it was last heard.
    pub active: Nanos,
    /// Entries it has yet to take.
    #[serde(skip_serializing_if = "is_zero")]
    pub lag: u64,
    /// Its id of eight characters.
    pub peer: String,
    /// Assigned and not yet a member.
    #[serde(skip_serializing_if = "is_zero")]
    pub pending: bool,
}

decodable!(PeerInfo as "PeerInfo" { name, current, offline, active, lag, peer, pending });

/// What a reconfiguration is heading for (`desired`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredInfo {
    /// When it was asked for.
    pub created: Time,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub name: String,
    /// The servers it will be on; absent on a scale-down.
    #[serde(skip_serializing_if = "is_zero")]
    pub replicas: Vec<DesiredPeer>,
    /// What it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<DesiredOrigin>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<DesiredStatus>,
}

decodable!(DesiredInfo as "DesiredInfo" { created, name, replicas, origin, status });

/// A server that a reconfiguration is heading for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredPeer {
    /// Its name.
    pub name: String,
    /// Its id of eight characters.
    pub peer: String,
}

decodable!(DesiredPeer as "DesiredPeer" { name, peer });

/// What a reconfiguration comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredOrigin {
    /// Replicas before.
    pub replicas: u64,
    /// Placement before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Retention before, if it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

decodable!(DesiredOrigin as "DesiredOrigin" { replicas, placement, retention });

/// What a reconfiguration waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredStatus {
    /// Text for people.
    pub description: String,
    /// One of `meta`, `membership`, `snapshot`, `catchup`, `quorum`, `blocked`, `unavailable`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What went wrong.
    #[serde(skip_serializing_if = "is_zero")]
    pub err: String,
}

decodable!(DesiredStatus as "DesiredStatus" { description, kind = "type", err });
