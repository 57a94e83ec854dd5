//! The CONNECT message: what a client says about itself.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// The fields of CONNECT that a server reads. Missing fields keep the value they had: on the first CONNECT of a
/// connection that is [`Connect::default`], on a later one what the earlier ones said (nats-server 2.15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Whether `+OK` answers each accepted CONNECT, SUB, UNSUB and publish; default true.
    pub verbose: bool,
    /// Whether publish subjects are checked; default true.
    pub pedantic: bool,
    /// Whether the connection gets its own publishes; default true.
    pub echo: bool,
    /// Whether the client asks for TLS; for information.
    pub tls_required: bool,
    /// Token.
    pub auth_token: String,
    /// User name.
    pub user: String,
    /// Password.
    pub pass: String,
    /// Public nkey of the user.
    pub nkey: String,
    /// User JWT.
    pub jwt: String,
    /// Signature of the nonce.
    pub sig: String,
    /// The client's name of this connection.
    pub name: String,
    /// Language of the client library.
    pub lang: String,
    /// Version of the client library.
    pub version: String,
    /// Protocol level: 0, or 1 for a client that takes INFO at any time. Other values are refused by `session`.
    pub protocol: i64,
    /// Obsolete; a client that names an account is refused.
    pub account: String,
    /// Obsolete; refused as well.
    pub new_account: bool,
    /// Whether the client understands headers.
    pub headers: bool,
    /// Whether the client wants a 503 for requests that nobody receives.
    pub no_responders: bool,
    /// Signature of the nonce by a trusted proxy.
    pub proxy_sig: String,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            verbose: true,
            pedantic: true,
            echo: true,
            tls_required: false,
            auth_token: String::new(),
            user: String::new(),
            pass: String::new(),
            nkey: String::new(),
            jwt: String::new(),
            sig: String::new(),
            name: String::new(),
            lang: String::new(),
            version: String::new(),
            protocol: 0,
            account: String::new(),
            new_account: false,
            headers: false,
            no_responders: false,
            proxy_sig: String::new(),
        }
    }
}

/// CONNECT holds no JSON object of the right form. Closes the connection in silence; the text goes to the log.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ConnectError(serde_json::Error);

impl Connect {
    /// Takes over the fields that `json` names. Keys are matched without regard to case, `null` keeps the value,
    /// unknown keys are skipped, and of a key that comes twice the last wins, as Go's decoder does.
    ///
    /// # Errors
    /// [`ConnectError`] if `json` is not an object (or `null`) or a value has the wrong type. The fields read before
    /// that are taken over.
    pub fn update(&mut self, json: &[u8]) -> Result<(), ConnectError> {
        // Go replaces what is not UTF-8 instead of refusing it.
        let text = String::from_utf8_lossy(json);
        let mut de = serde_json::Deserializer::from_str(&text);
        Update(self).deserialize(&mut de).map_err(ConnectError)?;
        de.end().map_err(ConnectError)
    }
}

/// Whether `text` is JSON, of whatever form.
#[must_use]
pub fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

struct Update<'a>(&'a mut Connect);

impl<'de> DeserializeSeed<'de> for Update<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<(), D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Update<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let c = self.0;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match key.to_ascii_lowercase().as_str() {
                "verbose" => read(&mut map, &mut c.verbose)?,
                "pedantic" => read(&mut map, &mut c.pedantic)?,
                "echo" => read(&mut map, &mut c.echo)?,
                "tls_required" => read(&mut map, &mut c.tls_required)?,
                "auth_token" => read(&mut map, &mut c.auth_token)?,
                "user" => read(&mut map, &mut c.user)?,
                "pass" => read(&mut map, &mut c.pass)?,
                "nkey" => read(&mut map, &mut c.nkey)?,
                "jwt" => read(&mut map, &mut c.jwt)?,
                "sig" => read(&mut map, &mut c.sig)?,
                "name" => read(&mut map, &mut c.name)?,
                "lang" => read(&mut map, &mut c.lang)?,
                "version" => read(&mut map, &mut c.version)?,
                "protocol" => read(&mut map, &mut c.protocol)?,
                "account" => read(&mut map, &mut c.account)?,
                "new_account" => read(&mut map, &mut c.new_account)?,
                "headers" => read(&mut map, &mut c.headers)?,
                "no_responders" => read(&mut map, &mut c.no_responders)?,
                "proxy_sig" => read(&mut map, &mut c.proxy_sig)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn read<'de, A: MapAccess<'de>, T: Deserialize<'de>>(map: &mut A, field: &mut T) -> Result<(), A::Error> {
    if let Some(value) = map.next_value::<Option<T>>()? {
        *field = value;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Connect, ConnectError> {
        let mut c = Connect::default();
        c.update(json.as_bytes()).map(|()| c)
    }

    #[test]
    fn missing_fields_keep_their_defaults() {
        assert_eq!(of("{}").unwrap(), Connect::default());
        assert_eq!(of(" null ").unwrap(), Connect::default());
        let c = of(r#"{"verbose":false,"lang":"rust","protocol":1,"pedantic":null}"#).unwrap();
        assert_eq!(
            (c.verbose, c.pedantic, c.echo, c.lang.as_str(), c.protocol),
            (false, true, true, "rust", 1)
        );
    }

    #[test]
    fn keys_are_matched_without_case_and_the_last_wins() {
        let c =
            of(r#"{"VERBOSE":false,"Protocol":7,"protocol":1,"other":{"a":[1]},"us\u0065r":"x"}"#).unwrap();
        assert_eq!((c.verbose, c.protocol, c.user.as_str()), (false, 1, "x"));
    }

    #[test]
    fn what_is_not_an_object_of_the_right_types_is_an_error() {
        for bad in [
            "{x",
            "[]",
            "",
            "1",
            r#"{"verbose":"x"}"#,
            r#"{"protocol":1.5}"#,
            "{} x",
            r#"{"user":1}"#,
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let mut c = Connect::default();
        c.update(b"{\"name\":\"a\xff\"}").unwrap();
        assert_eq!(c.name, "a\u{fffd}");
    }

    #[test]
    fn a_second_connect_changes_only_what_it_names() {
        let mut c = of(r#"{"verbose":false,"user":"a"}"#).unwrap();
        c.update(br#"{"pedantic":false}"#).unwrap();
        assert_eq!((c.verbose, c.pedantic, c.user.as_str()), (false, false, "a"));
    }
}
