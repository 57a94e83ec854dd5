//! Bodies of the monitoring endpoints, which are also the `data` of the same requests to the system account.

mod accountz;
mod connz;
mod healthz;
mod jsz;
mod options;
mod routez;
mod subsz;
mod varz;

pub use accountz::{AccountDetail, AccountImport, AccountStatz, Accountz, MappedDestination};
pub use connz::{ConnInfo, Connz, PeerCertificate, SubDetail};
pub use healthz::{HealthError, Healthz};
pub use jsz::{
    AccountDetailJs, JetStreamConfig, JetStreamLimits, JetStreamStats, JetStreamVarz, Jsz, MetaCluster,
    MetaSnapshot, RaftGroup, StreamDetail, TidelockStream,
};
pub use options::{
    AccountStatzOptions, AccountzOptions, ClientRequest, ConnzOptions, EventFilter, HealthzOptions,
    JszOptions, RaftzOptions, RoutezOptions, SubszOptions,
};
pub use routez::{LeafInfo, Leafz, RouteInfo, Routez};
pub use subsz::{SublistStats, Subsz};
pub use varz::{
    ClusterVarz, DiskIoWait, GatewayVarz, LeafVarz, LinkCounts, MqttVarz, RouteStat, StatsReply, Statsz,
    Varz, WebsocketVarz,
};

use crate::{Nanos, Time};

/// How long it is from `start` to `now`, as the endpoints write it: `1y2d3h4m5s`, without fractions of a second.
#[must_use]
pub fn uptime(start: Time, now: Time) -> String {
    let total = u64::try_from(now.0.0.saturating_sub(start.0.0)).unwrap_or(0) / 1_000_000_000;
    let (seconds, minutes, hours, days) = (total % 60, total / 60, total / 3_600, total / 86_400);
    let years = days / 365;
    if years > 0 {
        return format!(
            "{years}y{}d{}h{}m{seconds}s",
            days % 365,
            hours % 24,
            minutes % 60
        );
    }
    if days > 0 {
        return format!("{days}d{}h{}m{seconds}s", hours % 24, minutes % 60);
    }
    if hours > 0 {
        return format!("{hours}h{}m{seconds}s", minutes % 60);
    }
    if minutes > 0 {
        return format!("{minutes}m{seconds}s");
    }
    format!("{seconds}s")
}

/// A round trip time as the endpoints write it; empty if it is not known.
#[must_use]
pub fn rtt_text(rtt: Option<Nanos>) -> String {
    rtt.map(|rtt| rtt.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
