//! `/routez` and `/leafz`: links to other servers.

use super::SubDetail;
use crate::Time;
use crate::event::SubjectPermission;
use crate::json::is_zero;
use serde::Serialize;

/// Routes to the other servers of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Routez {
    /// Id of the server.
    pub server_id: String,
    /// Its name.
    pub server_name: String,
    /// When this was written.
    pub now: Time,
    /// What may come in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<SubjectPermission>,
    /// What may go out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<SubjectPermission>,
    /// Routes.
    pub num_routes: u64,
    /// The routes.
    pub routes: Vec<RouteInfo>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteInfo {
    /// Its number.
    pub rid: u64,
    /// Id of the other server.
    pub remote_id: String,
    /// Its name.
    pub remote_name: String,
    /// This server connected.
    pub did_solicit: bool,
    /// The route is configured here.
    pub is_configured: bool,
    /// Address of the other server.
    pub ip: String,
    /// Its port.
    pub port: u64,
    /// When it was connected.
    pub start: Time,
    /// When something was last sent or received.
    pub last_activity: Time,
    /// Round trip time.
    #[serde(skip_serializing_if = "is_zero")]
    pub rtt: String,
    /// How long it is connected.
    pub uptime: String,
    /// How long nothing happened.
    pub idle: String,
    /// What may come in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<SubjectPermission>,
    /// What may go out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<SubjectPermission>,
    /// Bytes waiting.
    pub pending_size: u64,
    /// Messages received.
    pub in_msgs: u64,
    /// Messages sent.
    pub out_msgs: u64,
    /// Bytes received.
    pub in_bytes: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// Subscriptions of the other server.
    pub subscriptions: u64,
    /// Those, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list: Vec<String>,
    /// The same with details.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list_detail: Vec<SubDetail>,
    /// The account it is for.
    #[serde(skip_serializing_if = "is_zero")]
    pub account: String,
    /// Compression in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub compression: String,
}

/// Leafnodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leafz {
    /// Id of the server.
    pub server_id: String,
    /// When this was written.
    pub now: Time,
    /// Leafnodes.
    pub leafnodes: u64,
    /// The leafnodes.
    pub leafs: Vec<LeafInfo>,
}

/// One leafnode connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeafInfo {
    /// Its number.
    pub id: u64,
    /// Name of the other server.
    pub name: String,
    /// The other side is the hub.
    pub is_spoke: bool,
    /// It is isolated from other leafnodes.
    #[serde(skip_serializing_if = "is_zero")]
    pub is_isolated: bool,
    /// The account here.
    pub account: String,
    /// Address of the other server.
    pub ip: String,
    /// Its port.
    pub port: u64,
    /// Round trip time.
    #[serde(skip_serializing_if = "is_zero")]
    pub rtt: String,
    /// Messages received.
    pub in_msgs: u64,
    /// Messages sent.
    pub out_msgs: u64,
    /// Bytes received.
    pub in_bytes: u64,
    /// Bytes sent.
    pub out_bytes: u64,
    /// Subscriptions of the other server.
    pub subscriptions: u64,
    /// Those, if asked for.
    #[serde(skip_serializing_if = "is_zero")]
    pub subscriptions_list: Vec<String>,
    /// Compression in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub compression: String,
}
