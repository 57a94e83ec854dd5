//! Typed access to values: each wrong one is reported at its place, and reading goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::duration;
use crate::error::{Position, Problem};
use crate::options::{Advertise, HostPort};
use crate::value::{Entry, Map, Node, Value};

/// What was found wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

impl Reader {
    pub(crate) fn problem(&mut self, at: &Position, reason: impl Into<String>) {
        self.problems.push(Problem {
            at: Some(at.clone()),
            reason: reason.into(),
        });
    }

    pub(crate) fn warning(&mut self, at: &Position, field: &str, reason: &str) {
        let reason = format!("invalid use of field {field:?}: {reason}");
        self.warnings.push(Problem {
            at: Some(at.clone()),
            reason,
        });
    }

    /// A key that no part of the language knows, unless it only defines a variable.
    pub(crate) fn unknown(&mut self, entry: &Entry) {
        if !entry.used_as_variable {
            self.problem(&entry.node.at, format!("unknown field {:?}", entry.key));
        }
    }

    /// A key that nats-server knows and Tidelock does not have yet.
    pub(crate) fn unsupported(&mut self, entry: &Entry) {
        self.problem(&entry.node.at, unsupported(&entry.key));
    }

    /// The same for a switch or a number, which may well be off.
    pub(crate) fn unsupported_unless_off(&mut self, entry: &Entry) {
        if !matches!(entry.node.value, Value::Bool(false) | Value::Integer(0)) {
            self.unsupported(entry);
        }
    }

    /// A value of another type than `wanted`, in the words of nats-server.
    fn wrong(&mut self, node: &Node, wanted: &str) {
        let got = node.value.type_name();
        let reason = format!("interface conversion: interface {{}} is {got}, not {wanted}");
        self.problem(&node.at, reason);
    }

    pub(crate) fn text(&mut self, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            _ => {
                self.wrong(node, "string");
                None
            }
        }
    }

    /// A string, where an empty one means that there is none.
    pub(crate) fn text_if_any(&mut self, node: &Node) -> Option<String> {
        self.text(node).filter(|text| !text.is_empty())
    }

    pub(crate) fn bool(&mut self, node: &Node) -> Option<bool> {
        match node.value {
            Value::Bool(value) => Some(value),
            _ => {
                self.wrong(node, "bool");
                None
            }
        }
    }

    pub(crate) fn integer(&mut self, node: &Node) -> Option<i64> {
        match node.value {
            Value::Integer(value) => Some(value),
            _ => {
                self.wrong(node, "int64");
                None
            }
        }
    }

    pub(crate) fn map<'n>(&mut self, node: &'n Node) -> Option<&'n Map> {
        match &node.value {
            Value::Map(map) => Some(map),
            _ => {
                self.wrong(node, "map[string]interface {}");
                None
            }
        }
    }

    /// The list of users of an account, in the words of nats-server if it is none.
    pub(crate) fn users<'n>(&mut self, node: &'n Node) -> Option<&'n [Node]> {
        let Value::Array(nodes) = &node.value else {
            let got = node.value.shown();
            self.problem(
                &node.at,
                format!("Expected users field to be an array, got {got}"),
            );
            return None;
        };
        Some(nodes)
    }

    pub(crate) fn array<'n>(&mut self, node: &'n Node) -> Option<&'n [Node]> {
        match &node.value {
            Value::Array(nodes) => Some(nodes),
            _ => {
                self.wrong(node, "[]interface {}");
                None
            }
        }
    }

    /// An integer that is not negative and fits the type.
    pub(crate) fn number<T: TryFrom<i64>>(&mut self, entry: &Entry) -> Option<T> {
        let value = self.integer(&entry.node)?;
        if value < 0 {
            self.problem(&entry.node.at, format!("{} value can not be negative", entry.key));
            return None;
        }
        match T::try_from(value) {
            Ok(value) => Some(value),
            Err(_) => {
                self.problem(&entry.node.at, format!("{} value is too big", entry.key));
                None
            }
        }
    }

    /// As [`Self::number`], where 0 means the default.
    pub(crate) fn number_or(&mut self, entry: &Entry, default: u64) -> u64 {
        self.number(entry).filter(|value| *value > 0).unwrap_or(default)
    }

    /// A number of bytes below 2 GiB, where 0 means the default.
    pub(crate) fn size32(&mut self, entry: &Entry, default: u32) -> u32 {
        let value: Option<i32> = self.number(entry);
        value
            .and_then(|value| u32::try_from(value).ok())
            .filter(|value| *value > 0)
            .unwrap_or(default)
    }

    /// A limit that 0 and negative numbers take away; `before` if it is not a number.
    pub(crate) fn unlimited_if_not_positive(&mut self, entry: &Entry, before: Option<u64>) -> Option<u64> {
        match self.integer(&entry.node) {
            Some(value) => u64::try_from(value).ok().filter(|value| *value > 0),
            None => before,
        }
    }

    /// Tags: one string or a list of strings.
    pub(crate) fn tags(&mut self, node: &Node) -> Vec<(String, Position)> {
        if matches!(node.value, Value::Text(_) | Value::Array(_)) {
            return self.texts(node);
        }
        let got = node.value.type_name();
        self.problem(&node.at, format!("error parsing tags: unsupported type {got}"));
        Vec::new()
    }

    /// One string or a list of strings.
    pub(crate) fn texts(&mut self, node: &Node) -> Vec<(String, Position)> {
        match &node.value {
            Value::Text(text) => vec![(text.clone(), node.at.clone())],
            Value::Array(nodes) => nodes
                .iter()
                .filter_map(|node| Some((self.text(node)?, node.at.clone())))
                .collect(),
            _ => {
                let got = node.value.kind();
                self.problem(
                    &node.at,
                    format!("expected a string or an array of strings, got {got}"),
                );
                Vec::new()
            }
        }
    }

    /// A map from strings to strings.
    pub(crate) fn text_map(&mut self, node: &Node) -> BTreeMap<String, String> {
        let Some(map) = self.map(node) else {
            return BTreeMap::new();
        };
        let pairs = map.entries().iter();
        pairs
            .filter_map(|entry| Some((entry.key.clone(), self.text(&entry.node)?)))
            .collect()
    }

    /// A duration as a string, in nanoseconds; it may be negative.
    pub(crate) fn strict_nanos(&mut self, entry: &Entry) -> Option<i64> {
        let text = self.text(&entry.node)?;
        match duration::parse(&text) {
            Ok(nanos) => Some(nanos),
            Err(reason) => {
                self.problem(&entry.node.at, format!("error parsing {}: {reason}", entry.key));
                None
            }
        }
    }

    /// A duration as a string.
    pub(crate) fn strict_duration(&mut self, entry: &Entry) -> Option<Duration> {
        let nanos = self.strict_nanos(entry)?;
        self.not_negative(entry, nanos)
    }

    /// A duration as a string, or as an integer of seconds, which earns a warning. Zero is no duration.
    pub(crate) fn duration(&mut self, entry: &Entry) -> Option<Duration> {
        let duration = if let Value::Integer(seconds) = entry.node.value {
            let reason = format!("{} should be converted to a duration", entry.key);
            self.warning(&entry.node.at, &entry.key, &reason);
            self.not_negative(entry, seconds.saturating_mul(1_000_000_000))
        } else if let Value::Text(_) = entry.node.value {
            self.strict_duration(entry)
        } else {
            self.wrong(&entry.node, "int64");
            None
        };
        duration.filter(|duration| !duration.is_zero())
    }

    /// A time limit: seconds as an integer or a float, or a duration as a string. Zero is no limit of its own.
    pub(crate) fn time_limit(&mut self, entry: &Entry) -> Option<Duration> {
        let limit = match entry.node.value {
            Value::Integer(seconds) => self.not_negative(entry, seconds.saturating_mul(1_000_000_000)),
            Value::Float(seconds) => Duration::try_from_secs_f64(seconds).ok().or_else(|| {
                self.problem(&entry.node.at, format!("{} is not a span of time", entry.key));
                None
            }),
            Value::Text(ref text) => match duration::parse(text) {
                Ok(nanos) => self.not_negative(entry, nanos),
                Err(reason) => self.bad_time_limit(entry, &reason),
            },
            _ => self.bad_time_limit(entry, &"wrong type"),
        }?;
        if limit > Duration::from_secs(60) {
            let seconds = limit.as_secs_f64();
            let reason =
                format!("timeout of {seconds} seconds is high, consider keeping it under 60 seconds");
            self.warning(&entry.node.at, &entry.key, &reason);
        }
        Some(limit).filter(|limit| !limit.is_zero())
    }

    fn bad_time_limit(&mut self, entry: &Entry, reason: &dyn std::fmt::Display) -> Option<Duration> {
        self.problem(
            &entry.node.at,
            format!("error parsing authorization config, '{}' {reason}", entry.key),
        );
        None
    }

    fn not_negative(&mut self, entry: &Entry, nanos: i64) -> Option<Duration> {
        match u64::try_from(nanos) {
            Ok(nanos) => Some(Duration::from_nanos(nanos)),
            Err(_) => {
                self.problem(
                    &entry.node.at,
                    format!("invalid {}, needs to be positive", entry.key),
                );
                None
            }
        }
    }

    /// A port: `None` for 0, which stands for the default, and `Some(0)` for -1, any free port.
    pub(crate) fn port(&mut self, node: &Node) -> Option<u16> {
        let value = self.integer(node)?;
        match checked_port(value) {
            Ok(port) => port,
            Err(reason) => {
                self.problem(&node.at, reason);
                None
            }
        }
    }

    /// `host:port` or a port, each part `None` if it is not given.
    pub(crate) fn listen(&mut self, node: &Node) -> (Option<String>, Option<u16>) {
        let text = match &node.value {
            Value::Integer(_) => return (None, self.port(node)),
            Value::Text(text) => text,
            _ => {
                let got = node.value.type_name();
                self.problem(&node.at, format!("expected port or host:port, got {got}"));
                return (None, None);
            }
        };
        match parse_listen(text) {
            Ok((host, port)) => (Some(host).filter(|host| !host.is_empty()), port),
            Err(reason) => {
                self.problem(&node.at, reason);
                (None, None)
            }
        }
    }

    /// `host[:port]` to tell to others.
    pub(crate) fn advertise(&mut self, node: &Node) -> Option<Advertise> {
        let text = self.text_if_any(node)?;
        match parse_advertise(&text) {
            Ok(advertise) => Some(advertise),
            Err(reason) => {
                self.problem(&node.at, reason);
                None
            }
        }
    }
}

/// The text for a key or flag that is not there yet.
pub(crate) fn unsupported(name: &str) -> String {
    format!("{name:?} is not supported by this version of Tidelock yet")
}

/// A port as it is configured: `None` for 0, `Some(0)` for -1.
fn checked_port(value: i64) -> Result<Option<u16>, String> {
    match value {
        0 => Ok(None),
        -1 => Ok(Some(0)),
        _ => match u16::try_from(value) {
            Ok(port) => Ok(Some(port)),
            Err(_) => Err(format!("invalid port {value}, expected -1 to 65535")),
        },
    }
}

/// A host without brackets, and the text after the last colon outside of them.
fn split_host(text: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

fn parse_port(text: &str) -> Result<Option<u16>, String> {
    let value = text
        .trim()
        .parse()
        .map_err(|_| format!("could not parse port {text:?}"))?;
    checked_port(value)
}

/// `host:port`; the port is needed.
pub(crate) fn parse_listen(text: &str) -> Result<(String, Option<u16>), String> {
    match split_host(text) {
        (host, Some(port)) => Ok((host.to_owned(), parse_port(port)?)),
        (_, None) => Err(format!("could not parse address string {text:?}")),
    }
}

/// `host` or `host:port`.
pub(crate) fn parse_advertise(text: &str) -> Result<Advertise, String> {
    let (host, port) = split_host(text);
    let port = match port {
        Some(port) => parse_port(port)?.filter(|port| *port != 0),
        None => None,
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(format!("could not parse address string {text:?}"));
    }
    Ok(Advertise {
        host: host.to_owned(),
        port,
    })
}

/// `nats://[user[:password]@]host[:port]`, as it is given for routes and clusters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) host: String,
    /// `None` if there is none, `Some(None)` for 0, `Some(Some(0))` for -1.
    pub(crate) port: Option<Option<u16>>,
}

/// Parses a server's URL; the scheme is `nats`, `nats-route` or missing.
///
/// # Errors
/// What is wrong with it, without the URL itself: it may hold a password.
pub(crate) fn parse_url(url: &str) -> Result<ServerUrl, String> {
    let url = url.trim();
    let rest = match url.split_once("://") {
        Some(("nats" | "nats-route", rest)) => rest,
        Some(("tls", _)) => return Err(unsupported("tls")),
        Some((scheme, _)) => return Err(format!("unexpected scheme {scheme:?}, expected \"nats\"")),
        None => url,
    };
    let rest = rest.trim_end_matches('/');
    let (credentials, address) = match rest.rsplit_once('@') {
        Some((credentials, address)) => (Some(credentials), address),
        None => (None, rest),
    };
    let (host, port) = split_host(address);
    let port = port.map(parse_port).transpose()?;
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#')) {
        return Err("expected nats://host:port".to_owned());
    }
    let (user, password) = match credentials.map(|pair| pair.split_once(':').unwrap_or((pair, ""))) {
        Some((user, password)) => (
            Some(decode(user)?),
            Some(decode(password)?).filter(|p| !p.is_empty()),
        ),
        None => (None, None),
    };
    Ok(ServerUrl {
        user: user.filter(|user| !user.is_empty()),
        password,
        host: host.to_owned(),
        port,
    })
}

impl ServerUrl {
    /// The address, with a port for where none is given.
    pub(crate) fn address(&self, default_port: u16) -> HostPort {
        HostPort::new(self.host.clone(), self.port.flatten().unwrap_or(default_port))
    }
}

/// Undoes percent-encoding (RFC 3986, section 2.1).
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let code = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(code.ok_or("invalid URL escape")?);
    }
    String::from_utf8(bytes).map_err(|_| "invalid URL escape".to_owned())
}
