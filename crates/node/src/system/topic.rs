//! What can be asked of a node, whoever asks.

use tidelock_api::monitor::{
    AccountStatzOptions, AccountzOptions, ConnzOptions, HealthzOptions, JszOptions, RaftzOptions,
    RoutezOptions, SubszOptions,
};

/// A question, decoded and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The page that links the endpoints.
    Root,
    /// The server.
    Varz,
    /// Connections.
    Connz(Box<ConnzOptions>),
    /// Links to other nodes.
    Routez(RoutezOptions),
    /// Gateways, of which there are none.
    Gatewayz,
    /// Leafnodes, of which there are none.
    Leafz,
    /// Subscriptions.
    Subsz(SubszOptions),
    /// Names of accounts, or one account.
    Accountz(AccountzOptions),
    /// Figures of accounts.
    Accstatz(AccountStatzOptions),
    /// JetStream.
    Jsz(Box<JszOptions>),
    /// Whether the server is well.
    Healthz(Box<HealthzOptions>),
    /// Replicated groups.
    Raftz(RaftzOptions),
    /// Queues between threads; none has anything to show.
    IpQueues,
    /// The short figures of the server.
    Statsz,
    /// Who the server is.
    Idz,
    /// One account (`ACCOUNT.<name>.INFO`).
    AccountInfo(String),
    /// Connections of one account as an event (`ACCOUNT.<name>.CONNS`).
    AccountConns(String),
    /// JetStream of one account (`ACCOUNT.<name>.JSZ`).
    AccountJsz(Box<JszOptions>),
    /// Close this client.
    Kick(u64),
    /// Tell this client that the server goes.
    Ldm(u64),
}

/// What is done to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is closed.
    Kick(u64),
    /// It is told that the server goes.
    Ldm(u64),
}

/// What every worker has to contribute to an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Traffic of its connections, by account.
    pub(crate) traffic: bool,
    /// Its connections.
    pub(crate) connections: Option<Box<ConnzOptions>>,
    /// Its subscriptions.
    pub(crate) subscriptions: Option<SubszOptions>,
    /// Its groups.
    pub(crate) jetstream: Option<Box<JszOptions>>,
    /// Whether its groups are well.
    pub(crate) health: Option<Box<HealthzOptions>>,
    /// Consensus of its groups.
    pub(crate) raft: Option<RaftzOptions>,
    /// One of its clients is to be treated like this.
    pub(crate) act: Option<Act>,
}

impl Needs {
    /// Whether the asked worker can answer alone.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Topic {
    /// What has to be gathered for the answer.
    pub(crate) fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        match self {
            Self::Root
            | Self::Gatewayz
            | Self::Leafz
            | Self::IpQueues
            | Self::Idz
            | Self::Routez(_)
            | Self::Accountz(_)
            | Self::AccountInfo(_) => {}
            Self::Varz | Self::Statsz => {
                needs.traffic = true;
                needs.jetstream = Some(Box::default());
            }
            Self::Connz(options) => needs.connections = Some(options.clone()),
            Self::Subsz(options) => needs.subscriptions = Some(options.clone()),
            Self::Accstatz(_) | Self::AccountConns(_) => needs.traffic = true,
            Self::Jsz(options) | Self::AccountJsz(options) => needs.jetstream = Some(options.clone()),
            Self::Healthz(options) => needs.health = Some(options.clone()),
            Self::Raftz(options) => needs.raft = Some(options.clone()),
            Self::Kick(cid) => needs.act = Some(Act::Kick(*cid)),
            Self::Ldm(cid) => needs.act = Some(Act::Ldm(*cid)),
        }
        needs
    }
}
