//! The configuration language, the flags, and the options they come to.

mod options;

pub use options::{
    AccountOptions, Advertise, ClusterOptions, ConfigFile, ConnectionLimits, HostPort, JetStreamLimits,
    JetStreamOptions, JetStreamServerLimits, LogOptions, MonitorOptions, Options, RouteCredentials, RouteUrl,
    SyncInterval,
};
