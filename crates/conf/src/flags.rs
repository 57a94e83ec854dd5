//! Flags: what they are called, what they take, and how a command line is read.
//!
//! The syntax is that of Go's `flag` package, which nats-server uses: one dash or two, `-flag value` or
//! `-flag=value`, and a switch needs `=` to be given a value. Reading stops at the first word that is no flag, or
//! after `--`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A flag, whichever of its names it was given by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "each flag is documented where it is defined, in FLAGS"
)]
pub enum Flag {
    Addr,
    Port,
    Name,
    Pid,
    HttpPort,
    HttpsPort,
    Config,
    Test,
    Signal,
    ClientAdvertise,
    PortsFileDir,
    Log,
    LogTime,
    LogTimeUtc,
    Syslog,
    RemoteSyslog,
    Debug,
    Trace,
    TraceVerbose,
    DebugTrace,
    DebugTraceVerbose,
    LogSizeLimit,
    MaxTracedMsgLen,
    JetStream,
    StoreDir,
    User,
    Pass,
    Auth,
    Tls,
    TlsCert,
    TlsKey,
    TlsVerify,
    TlsCaCert,
    Routes,
    Cluster,
    ClusterName,
    NoAdvertise,
    ClusterAdvertise,
    ConnectRetries,
    Profile,
    Help,
    Version,
    HelpTls,
}

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// Nothing, or `=true` and `=false`.
    Switch,
    /// Any text.
    Text,
    /// An integer.
    Integer,
}

/// A flag as it is defined.
#[derive(Clone, Copy, Debug)]
pub struct FlagDef {
    /// The flag.
    pub flag: Flag,
    /// Its names without dashes, as the usage text lists them.
    pub names: &'static [&'static str],
    /// What it takes.
    pub kind: FlagKind,
    /// What the usage text calls its value; empty for a switch.
    pub value: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Flags under a heading of the usage text.
#[derive(Clone, Copy, Debug)]
pub struct FlagGroup {
    /// The heading.
    pub title: &'static str,
    /// The flags.
    pub flags: &'static [FlagDef],
}

const fn switch(flag: Flag, names: &'static [&'static str], doc: &'static str) -> FlagDef {
    FlagDef {
        flag,
        names,
        kind: FlagKind::Switch,
        value: "",
        doc,
    }
}

const fn text(flag: Flag, names: &'static [&'static str], value: &'static str, doc: &'static str) -> FlagDef {
    FlagDef {
        flag,
        names,
        kind: FlagKind::Text,
        value,
        doc,
    }
}

const fn integer(
    flag: Flag,
    names: &'static [&'static str],
    value: &'static str,
    doc: &'static str,
) -> FlagDef {
    FlagDef {
        flag,
        names,
        kind: FlagKind::Integer,
        value,
        doc,
    }
}

/// All flags, in the order of the usage text.
pub const FLAGS: &[FlagGroup] = &[
    FlagGroup {
        title: "Server",
        flags: &[
            text(
                Flag::Addr,
                &["a", "addr", "net"],
                "host",
                "Address to listen on for clients (default: 0.0.0.0)",
            ),
            integer(
                Flag::Port,
                &["p", "port"],
                "port",
                "Port for clients, -1 for any free one (default: 4222)",
            ),
            text(
                Flag::Name,
                &["n", "name", "server_name"],
                "name",
                "Name of the server (default: its id)",
            ),
            text(
                Flag::Pid,
                &["P", "pid"],
                "file",
                "File to write the process id to",
            ),
            integer(
                Flag::HttpPort,
                &["m", "http_port"],
                "port",
                "Port for monitoring over http",
            ),
            integer(
                Flag::HttpsPort,
                &["ms", "https_port"],
                "port",
                "Port for monitoring over https",
            ),
            text(Flag::Config, &["c", "config"], "file", "Configuration file"),
            switch(Flag::Test, &["t"], "Check the configuration file and exit"),
            text(
                Flag::Signal,
                &["sl", "signal"],
                "signal[=pid]",
                "Signal a server: ldm, stop, quit, term, reopen or reload",
            ),
            text(
                Flag::ClientAdvertise,
                &["client_advertise"],
                "host[:port]",
                "Address that other servers give clients",
            ),
            text(
                Flag::PortsFileDir,
                &["ports_file_dir"],
                "dir",
                "Directory for the file that lists all ports",
            ),
        ],
    },
    FlagGroup {
        title: "Logging",
        flags: &[
            text(
                Flag::Log,
                &["l", "log"],
                "file",
                "File to append the log to (default: standard error)",
            ),
            switch(
                Flag::LogTime,
                &["T", "logtime"],
                "Begin lines with the time (default: true)",
            ),
            switch(
                Flag::LogTimeUtc,
                &["logtime_utc"],
                "Times in UTC instead of local time (default: false)",
            ),
            switch(Flag::Syslog, &["s", "syslog"], "Log to syslog"),
            text(
                Flag::RemoteSyslog,
                &["r", "remote_syslog"],
                "addr",
                "Log to this syslog server",
            ),
            switch(Flag::Debug, &["D", "debug"], "Log debugging output"),
            switch(Flag::Trace, &["V", "trace"], "Log the protocol of clients"),
            switch(Flag::TraceVerbose, &["VV"], "The same, with the system account"),
            switch(Flag::DebugTrace, &["DV"], "-D and -V"),
            switch(Flag::DebugTraceVerbose, &["DVV"], "-D and -VV"),
            integer(
                Flag::LogSizeLimit,
                &["log_size_limit"],
                "bytes",
                "Size after which the log file is rotated",
            ),
            integer(
                Flag::MaxTracedMsgLen,
                &["max_traced_msg_len"],
                "bytes",
                "Bytes of a payload that are traced",
            ),
        ],
    },
    FlagGroup {
        title: "JetStream",
        flags: &[
            switch(Flag::JetStream, &["js", "jetstream"], "Enable JetStream"),
            text(
                Flag::StoreDir,
                &["sd", "store_dir"],
                "dir",
                "Directory for streams",
            ),
        ],
    },
    FlagGroup {
        title: "Authorization",
        flags: &[
            text(Flag::User, &["user"], "user", "User that clients must give"),
            text(
                Flag::Pass,
                &["pass"],
                "password",
                "Password that clients must give",
            ),
            text(Flag::Auth, &["auth"], "token", "Token that clients must give"),
        ],
    },
    FlagGroup {
        title: "TLS",
        flags: &[
            switch(
                Flag::Tls,
                &["tls"],
                "Enable TLS, do not verify clients (default: false)",
            ),
            text(Flag::TlsCert, &["tlscert"], "file", "Certificate of the server"),
            text(
                Flag::TlsKey,
                &["tlskey"],
                "file",
                "Private key of the certificate",
            ),
            switch(Flag::TlsVerify, &["tlsverify"], "Enable TLS, verify clients"),
            text(
                Flag::TlsCaCert,
                &["tlscacert"],
                "file",
                "Authority that clients' certificates are verified with",
            ),
        ],
    },
    FlagGroup {
        title: "Cluster",
        flags: &[
            text(Flag::Routes, &["routes"], "url,url", "Peers to connect to"),
            text(
                Flag::Cluster,
                &["cluster", "cluster_listen"],
                "url",
                "Address to listen on for peers",
            ),
            text(
                Flag::ClusterName,
                &["cluster_name"],
                "name",
                "Name of the cluster (default: made up)",
            ),
            switch(
                Flag::NoAdvertise,
                &["no_advertise"],
                "Do not tell clients of the cluster's other servers",
            ),
            text(
                Flag::ClusterAdvertise,
                &["cluster_advertise"],
                "host[:port]",
                "Address that peers are told",
            ),
            integer(
                Flag::ConnectRetries,
                &["connect_retries"],
                "number",
                "Attempts for peers that others told of",
            ),
        ],
    },
    FlagGroup {
        title: "Profiling",
        flags: &[integer(
            Flag::Profile,
            &["profile"],
            "port",
            "Port for profiling over http",
        )],
    },
    FlagGroup {
        title: "Common",
        flags: &[
            switch(Flag::Help, &["h", "help"], "Show this message"),
            switch(Flag::Version, &["v", "version"], "Show the version"),
            switch(Flag::HelpTls, &["help_tls"], "Show help on TLS"),
        ],
    },
];

/// Flags that were given. A later one wins over an earlier one of the same meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    texts: BTreeMap<Flag, String>,
    integers: BTreeMap<Flag, i64>,
    switches: BTreeMap<Flag, bool>,
}

impl Flags {
    /// The text of a flag, if it was given.
    #[must_use]
    pub fn text(&self, flag: Flag) -> Option<&str> {
        self.texts.get(&flag).map(String::as_str)
    }

    /// The integer of a flag, if it was given.
    #[must_use]
    pub fn integer(&self, flag: Flag) -> Option<i64> {
        self.integers.get(&flag).copied()
    }

    /// The state of a switch, if it was given.
    #[must_use]
    pub fn switch(&self, flag: Flag) -> Option<bool> {
        self.switches.get(&flag).copied()
    }

    /// Whether a switch was given and is on.
    #[must_use]
    pub fn is_on(&self, flag: Flag) -> bool {
        self.switch(flag) == Some(true)
    }
}

/// A command line that cannot be read. The usage text follows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag has this name.
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    /// The flag takes a value, and the line ends.
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    /// The value is not a number.
    #[error("invalid value {value:?} for flag -{name}: {reason}")]
    BadNumber {
        /// The flag.
        name: String,
        /// Its value.
        value: String,
        /// `parse error` or `value out of range`.
        reason: &'static str,
    },
    /// The value is neither true nor false.
    #[error("invalid boolean value {value:?} for -{name}: parse error")]
    BadSwitch {
        /// The flag.
        name: String,
        /// Its value.
        value: String,
    },
    /// Dashes without a name.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
}

/// Reads the words after the program's name: the flags, and the words after them.
///
/// # Errors
/// [`FlagError`] for the first flag that is not one, or has not the value it needs.
pub fn parse_flags(words: &[String]) -> Result<(Flags, Vec<String>), FlagError> {
    let mut flags = Flags::default();
    let mut rest = words.iter();
    while let Some(word) = rest.as_slice().first() {
        if word == "--" {
            rest.next();
            break;
        }
        let Some(body) = word.strip_prefix('-').filter(|body| !body.is_empty()) else {
            break;
        };
        rest.next();
        let body = body.strip_prefix('-').unwrap_or(body);
        if body.starts_with(['-', '=']) {
            return Err(FlagError::Syntax(word.clone()));
        }
        let (name, value) = match body.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (body, None),
        };
        let def = find(name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
        let value = match (value, def.kind) {
            (Some(value), _) => value,
            (None, FlagKind::Switch) => "true",
            (None, FlagKind::Text | FlagKind::Integer) => {
                rest.next().ok_or_else(|| FlagError::NoValue(name.to_owned()))?
            }
        };
        set(&mut flags, def, name, value)?;
    }
    Ok((flags, rest.cloned().collect()))
}

fn find(name: &str) -> Option<&'static FlagDef> {
    FLAGS
        .iter()
        .flat_map(|group| group.flags)
        .find(|def| def.names.contains(&name))
}

fn set(flags: &mut Flags, def: &FlagDef, name: &str, value: &str) -> Result<(), FlagError> {
    match def.kind {
        FlagKind::Text => _ = flags.texts.insert(def.flag, value.to_owned()),
        FlagKind::Integer => {
            let number = value.parse().map_err(|error| bad_number(name, value, &error))?;
            flags.integers.insert(def.flag, number);
        }
        FlagKind::Switch => {
            let on = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(FlagError::BadSwitch {
                        name: name.to_owned(),
                        value: value.to_owned(),
                    });
                }
            };
            flags.switches.insert(def.flag, on);
        }
    }
    Ok(())
}

fn bad_number(name: &str, value: &str, error: &std::num::ParseIntError) -> FlagError {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let reason = match error.kind() {
        PosOverflow | NegOverflow => "value out of range",
        _ => "parse error",
    };
    FlagError::BadNumber {
        name: name.to_owned(),
        value: value.to_owned(),
        reason,
    }
}

/// The usage text, made from [`FLAGS`].
#[must_use]
pub fn usage(program: &str) -> String {
    /// Where the descriptions begin.
    const COLUMN: usize = 37;
    let mut text = format!("\nUsage: {program} [options]\n");
    for group in FLAGS {
        let _ = write!(text, "\n{} Options:\n", group.title);
        for def in group.flags {
            let head = head(def);
            if head.len() < COLUMN {
                let _ = writeln!(text, "{head:COLUMN$}{}", def.doc);
            } else {
                let _ = writeln!(text, "{head}\n{:COLUMN$}{}", "", def.doc);
            }
        }
    }
    text
}

/// `    -p, --port <port>`: names of more than two letters have two dashes, save those of which a single dash is
/// the custom.
fn head(def: &FlagDef) -> String {
    let mut head = "    ".to_owned();
    for (at, name) in def.names.iter().enumerate() {
        let short = name.len() <= 2 || *name == "DVV";
        if at == 0 && !short {
            head.push_str("    ");
        } else if at > 0 {
            head.push_str(", ");
        }
        head.push_str(if short { "-" } else { "--" });
        head.push_str(name);
    }
    if !def.value.is_empty() {
        let _ = write!(head, " <{}>", def.value);
    }
    head
}
