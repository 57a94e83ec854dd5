//! Options of the HTTP endpoints: from the query string to the options that requests of the system account have too.
//! Names, forms of values and error texts are nats-server's.

use super::topic::Topic;
use crate::worker::Query;
use std::num::{IntErrorKind, ParseIntError};
use tidelock_api::monitor::{
    AccountStatzOptions, AccountzOptions, ConnzOptions, HealthzOptions, JszOptions, RaftzOptions,
    RoutezOptions, SubszOptions,
};

/// A query that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such endpoint.
    NotFound,
    /// An option cannot be read, for this reason.
    Bad(String),
}

/// What an HTTP query asks.
pub(crate) fn topic(query: &Query) -> Result<Topic, Refused> {
    let options = Options(&query.options);
    Ok(match query.endpoint.as_str() {
        "" => Topic::Root,
        "varz" => Topic::Varz,
        "connz" => Topic::Connz(Box::new(connz(&options)?)),
        "routez" => {
            let (subscriptions, subscriptions_detail) = options.detail("subs")?;
            Topic::Routez(RoutezOptions {
                subscriptions,
                subscriptions_detail,
            })
        }
        "gatewayz" => {
            options.flag("accs")?;
            options.detail("subs")?;
            Topic::Gatewayz
        }
        "leafz" => {
            options.flag("subs")?;
            Topic::Leafz
        }
        "subsz" | "subscriptionsz" => Topic::Subsz(SubszOptions {
            subscriptions: options.flag("subs")?,
            offset: options.int("offset")?,
            limit: options.int("limit")?,
            account: options.text("acc"),
            test: options.text("test"),
        }),
        "accountz" => Topic::Accountz(AccountzOptions {
            account: options.text("acc"),
        }),
        "accstatz" => Topic::Accstatz(AccountStatzOptions {
            accounts: Vec::new(),
            include_unused: options.flag("unused")?,
        }),
        "jsz" => Topic::Jsz(Box::new(jsz(&options)?)),
        "healthz" => Topic::Healthz(Box::new(healthz(&options)?)),
        "raftz" => Topic::Raftz(RaftzOptions {
            account: options.text("acc"),
            group: options.text("group"),
        }),
        "ipqueuesz" => {
            options.flag("all")?;
            Topic::IpQueues
        }
        _ => return Err(Refused::NotFound),
    })
}

fn connz(options: &Options<'_>) -> Result<ConnzOptions, Refused> {
    let (subscriptions, subscriptions_detail) = options.detail("subs")?;
    let state = options.text("state");
    Ok(ConnzOptions {
        sort: options.text("sort"),
        auth: options.flag("auth")?,
        subscriptions,
        subscriptions_detail,
        offset: options.int("offset")?,
        limit: options.int("limit")?,
        cid: options.uint("cid")?,
        mqtt_client: options.text("mqtt_client"),
        state: match state.to_ascii_lowercase().as_str() {
            "" | "open" => 0,
            "closed" => 1,
            "any" | "all" => 2,
            _ => return Err(Refused::Bad(format!("Error decoding state for {state}"))),
        },
        user: options.text("user"),
        acc: options.text("acc"),
        filter_subject: options.text("filter_subject"),
    })
}

fn jsz(options: &Options<'_>) -> Result<JszOptions, Refused> {
    Ok(JszOptions {
        account: options.text("acc"),
        accounts: options.flag("accounts")?,
        streams: options.flag("streams")?,
        consumer: options.flag("consumers")?,
        direct_consumer: options.flag("direct-consumers")?,
        config: options.flag("config")?,
        leader_only: options.flag("leader-only")?,
        offset: options.int("offset")?,
        limit: options.int("limit")?,
        raft: options.flag("raft")?,
        stream_leader_only: options.flag("stream-leader-only")?,
    })
}

fn healthz(options: &Options<'_>) -> Result<HealthzOptions, Refused> {
    Ok(HealthzOptions {
        js_enabled: options.flag("js-enabled")?,
        js_enabled_only: options.flag("js-enabled-only")?,
        js_server_only: options.flag("js-server-only")?,
        js_meta_only: options.flag("js-meta-only")?,
        account: options.text("account"),
        stream: options.text("stream"),
        consumer: options.text("consumer"),
        details: options.flag("details")?,
    })
}

/// The options of a query; the first of several of one name counts.
struct Options<'a>(&'a [(String, String)]);

impl Options<'_> {
    fn get(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, value)| value)
    }

    fn text(&self, name: &str) -> String {
        self.get(name).to_owned()
    }

    /// A switch in one of Go's spellings.
    fn flag(&self, name: &str) -> Result<bool, Refused> {
        match self.get(name) {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
            "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
            value => Err(unreadable("boolean", name, "ParseBool", value, "invalid syntax")),
        }
    }

    /// A switch that may also be `detail`: on, and with details.
    fn detail(&self, name: &str) -> Result<(bool, bool), Refused> {
        if self.get(name).eq_ignore_ascii_case("detail") {
            Ok((true, true))
        } else {
            Ok((self.flag(name)?, false))
        }
    }

    fn int(&self, name: &str) -> Result<i64, Refused> {
        match self.get(name) {
            "" => Ok(0),
            value => value
                .parse()
                .map_err(|error| no_number("int", name, "Atoi", value, &error)),
        }
    }

    fn uint(&self, name: &str) -> Result<u64, Refused> {
        match self.get(name) {
            "" => Ok(0),
            value => value
                .parse()
                .map_err(|error| no_number("uint64", name, "ParseUint", value, &error)),
        }
    }
}

fn no_number(what: &str, name: &str, function: &str, value: &str, error: &ParseIntError) -> Refused {
    let reason = match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    unreadable(what, name, function, value, reason)
}

fn unreadable(what: &str, name: &str, function: &str, value: &str, reason: &str) -> Refused {
    Refused::Bad(format!(
        "Error decoding {what} for '{name}': strconv.{function}: parsing {value:?}: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(endpoint: &str, options: &[(&str, &str)]) -> Result<Topic, Refused> {
        let options = options
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        topic(&Query {
            endpoint: endpoint.to_owned(),
            options,
        })
    }

    fn text(endpoint: &str, name: &str, value: &str) -> String {
        match ask(endpoint, &[(name, value)]) {
            Err(Refused::Bad(text)) => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn unreadable_options_are_refused_in_go_s_words() {
        assert_eq!(
            text("connz", "subs", "x"),
            r#"Error decoding boolean for 'subs': strconv.ParseBool: parsing "x": invalid syntax"#
        );
        assert_eq!(
            text("jsz", "limit", "abc"),
            r#"Error decoding int for 'limit': strconv.Atoi: parsing "abc": invalid syntax"#
        );
        assert_eq!(
            text("connz", "cid", "x"),
            r#"Error decoding uint64 for 'cid': strconv.ParseUint: parsing "x": invalid syntax"#
        );
        assert_eq!(
            text("connz", "limit", "99999999999999999999"),
            r#"Error decoding int for 'limit': strconv.Atoi: parsing "99999999999999999999": value out of range"#
        );
        assert_eq!(
            text("connz", "cid", "99999999999999999999"),
            r#"Error decoding uint64 for 'cid': strconv.ParseUint: parsing "99999999999999999999": value out of range"#
        );
        assert_eq!(text("connz", "state", "xyz"), "Error decoding state for xyz");
        assert_eq!(ask("nope", &[]), Err(Refused::NotFound));
    }

    #[test]
    fn subs_may_be_detail_and_empty_values_count_as_absent() {
        let Ok(Topic::Connz(options)) = ask("connz", &[("subs", "Detail"), ("limit", ""), ("state", "ANY")])
        else {
            panic!("readable");
        };
        assert!(options.subscriptions && options.subscriptions_detail);
        assert_eq!((options.limit, options.state), (0, 2));
    }
}
