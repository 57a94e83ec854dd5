//! What can be asked of the endpoints: bodies of requests to the system account.

use crate::json::decodable;

/// Which servers a request is for; part of every request. All that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Name of the server.
    pub server_name: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Address of the server.
    pub host: String,
    /// Names must be equal, not contain each other.
    pub exact_match: bool,
    /// Tags, all of them.
    pub tags: Vec<String>,
    /// JetStream domain.
    pub domain: String,
}

decodable!(EventFilter as "EventFilterOptions" { server_name, cluster, host, exact_match, tags, domain });

impl EventFilter {
    /// Whether a server with these properties is meant.
    #[must_use]
    pub fn matches(&self, server: &crate::event::ServerInfo) -> bool {
        let fits = |wanted: &str, actual: &str| {
            wanted.is_empty()
                || if self.exact_match {
                    wanted == actual
                } else {
                    actual.contains(wanted)
                }
        };
        fits(&self.server_name, &server.name)
            && fits(&self.host, &server.host)
            && fits(&self.cluster, &server.cluster)
            && self.tags.iter().all(|tag| server.tags.contains(tag))
            && (self.domain.is_empty() || self.domain == server.domain)
    }
}

/// `CONNZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnzOptions {
    /// Key to sort by.
    pub sort: String,
    /// Show users and accounts.
    pub auth: bool,
    /// Show subscriptions.
    pub subscriptions: bool,
    /// Show them with details.
    pub subscriptions_detail: bool,
    /// How many to leave out.
    pub offset: i64,
    /// Most connections of the answer; 0 means the default.
    pub limit: i64,
    /// Only this connection.
    pub cid: u64,
    /// Only this client id of MQTT.
    pub mqtt_client: String,
    /// 0 open, 1 closed, 2 all.
    pub state: i64,
    /// Only this user.
    pub user: String,
    /// Only this account.
    pub acc: String,
    /// Only with a subscription that matches.
    pub filter_subject: String,
}

decodable!(ConnzOptions as "ConnzOptions" {
    sort, auth, subscriptions, subscriptions_detail, offset: "int", limit: "int", cid, mqtt_client, state: "int",
    user, acc, filter_subject,
});

/// `SUBSZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubszOptions {
    /// How many to leave out.
    pub offset: i64,
    /// Most subscriptions of the answer; 0 means the default.
    pub limit: i64,
    /// Show the subscriptions.
    pub subscriptions: bool,
    /// Only of this account.
    pub account: String,
    /// Only those that match this subject.
    pub test: String,
}

decodable!(SubszOptions as "SubszOptions" { offset: "int", limit: "int", subscriptions, account, test });

/// `ROUTEZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutezOptions {
    /// Show subscriptions.
    pub subscriptions: bool,
    /// Show them with details.
    pub subscriptions_detail: bool,
}

decodable!(RoutezOptions as "RoutezOptions" { subscriptions, subscriptions_detail });

/// `ACCOUNTZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountzOptions {
    /// The account to show; empty lists the names.
    pub account: String,
}

decodable!(AccountzOptions as "AccountzOptions" { account });

/// `JSZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JszOptions {
    /// Only this account.
    pub account: String,
    /// Show accounts.
    pub accounts: bool,
    /// Show streams.
    pub streams: bool,
    /// Show consumers.
    pub consumer: bool,
    /// Show consumers that feed other streams.
    pub direct_consumer: bool,
    /// Show configurations.
    pub config: bool,
    /// Answer only as the leader of the meta group.
    pub leader_only: bool,
    /// How many accounts to leave out.
    pub offset: i64,
    /// Most accounts of the answer; 0 means the default.
    pub limit: i64,
    /// Show raft groups.
    pub raft: bool,
    /// Show only streams that the server leads.
    pub stream_leader_only: bool,
}

decodable!(JszOptions as "JSzOptions" {
    account, accounts, streams, consumer, direct_consumer, config, leader_only, offset: "int", limit: "int", raft,
    stream_leader_only,
});

/// `HEALTHZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthzOptions {
    /// JetStream must be on.
    pub js_enabled: bool,
    /// Check nothing more than that.
    pub js_enabled_only: bool,
    /// Do not check JetStream's assets.
    pub js_server_only: bool,
    /// Check the meta group only.
    pub js_meta_only: bool,
    /// Check this account.
    pub account: String,
    /// Check this stream.
    pub stream: String,
    /// Check this consumer.
    pub consumer: String,
    /// Say everything that is wrong.
    pub details: bool,
}

decodable!(HealthzOptions as "HealthzOptions" {
    js_enabled = "js-enabled", js_enabled_only = "js-enabled-only", js_server_only = "js-server-only",
    js_meta_only = "js-meta-only", account, stream, consumer, details,
});

/// `RAFTZ`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaftzOptions {
    /// Only this account.
    pub account: String,
    /// Only this group.
    pub group: String,
}

decodable!(RaftzOptions as "RaftzOptions" { account, group });

/// `STATZ` of accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountStatzOptions {
    /// Only these accounts; none means all.
    pub accounts: Vec<String>,
    /// Show accounts without connections too.
    pub include_unused: bool,
}

decodable!(AccountStatzOptions as "AccountStatzOptions" { accounts, include_unused });

/// `KICK` and `LDM`: which client is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientRequest {
    /// Number of its connection.
    pub cid: u64,
}

decodable!(ClientRequest as "KickClientReq" { cid });
