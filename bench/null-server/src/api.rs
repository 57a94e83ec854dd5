//! Canned answers to the JetStream API: as much as `nats bench` and `perf.py` look at.

use crate::connection::Connection;
use crate::hub::lock;

const TYPE: &str = "io.nats.jetstream.api.v1";
const CREATED: &str = "2026-01-01T00:00:00Z";
/// Payload of every message that a stream delivers.
const PAYLOAD: [u8; 128] = [0; 128];
/// Most messages that one pull gets, whatever it asks for.
const BATCH_MAX: u64 = 10_000;

/// Answers a request to `subject`, or ignores it.
pub fn request(connection: &mut Connection<'_>, subject: &str, reply: &[u8], body: &[u8]) {
    let Some(rest) = subject.strip_prefix("$JS.API.") else {
        return;
    };
    let text = String::from_utf8_lossy(body);
    if let Some(names) = rest.strip_prefix("CONSUMER.MSG.NEXT.") {
        return pull(connection, names, reply, &text);
    }
    if let Some(names) = rest.strip_prefix("DIRECT.GET.") {
        return direct_get(connection, names, reply);
    }
    let answer = answer(connection, rest, &text);
    connection.answer(reply, b"", 0, answer.as_bytes());
}

fn answer(connection: &Connection<'_>, rest: &str, body: &str) -> String {
    let mut words = rest.splitn(3, '.');
    let (kind, verb, names) = (words.next(), words.next(), words.next().unwrap_or_default());
    match (kind, verb) {
        (Some("INFO"), _) => format!(
            "{{\"type\":\"{TYPE}.account_info_response\",\"memory\":0,\"storage\":0,\"streams\":1,\"consumers\":0,\"limits\":{{\
             \"max_memory\":-1,\"max_storage\":-1,\"max_streams\":-1,\"max_consumers\":-1,\"max_ack_pending\":-1}},\
             \"api\":{{\"level\":5,\"total\":0,\"errors\":0}}}}"
        ),
        (Some("STREAM"), Some("CREATE" | "UPDATE")) => {
            lock(&connection.hub.created).insert(names.to_owned(), body.to_owned());
            stream("create", body)
        }
        (Some("STREAM"), Some("INFO")) => match lock(&connection.hub.created).get(names) {
            Some(config) => stream("info", config),
            None => format!(
                "{{\"type\":\"{TYPE}.stream_info_response\",\"error\":{{\"code\":404,\"err_code\":10059,\"description\":\"stream not found\"}}}}"
            ),
        },
        (Some("CONSUMER"), Some("CREATE")) => {
            let config = member(body, "config").unwrap_or("{}");
            lock(&connection.hub.created).insert(names.to_owned(), config.to_owned());
            consumer("create", names, config)
        }
        (Some("CONSUMER"), Some("INFO")) => {
            let created = lock(&connection.hub.created);
            consumer("info", names, created.get(names).map_or("{}", String::as_str))
        }
        _ => format!("{{\"type\":\"{TYPE}.response\",\"success\":true}}"),
    }
}

fn stream(verb: &str, config: &str) -> String {
    format!(
        "{{\"type\":\"{TYPE}.stream_{verb}_response\",\"config\":{config},\"created\":\"{CREATED}\",\"state\":{{\"messages\":100000000,\
         \"bytes\":0,\"first_seq\":1,\"first_ts\":\"{CREATED}\",\"last_seq\":100000000,\"last_ts\":\"{CREATED}\",\"consumer_count\":0}},\
         \"did_create\":true}}"
    )
}

fn consumer(verb: &str, names: &str, config: &str) -> String {
    let (stream, name) = names.split_once('.').unwrap_or((names, "c"));
    let none = "{\"consumer_seq\":0,\"stream_seq\":0}";
    format!(
        "{{\"type\":\"{TYPE}.consumer_{verb}_response\",\"stream_name\":\"{stream}\",\"name\":\"{name}\",\"created\":\"{CREATED}\",\
         \"config\":{config},\"delivered\":{none},\"ack_floor\":{none},\"num_ack_pending\":0,\"num_redelivered\":0,\"num_waiting\":0,\
         \"num_pending\":100000000}}"
    )
}

/// As many messages as the request asks for.
fn pull(connection: &mut Connection<'_>, names: &str, inbox: &[u8], body: &str) {
    let batch = member(body, "batch")
        .map_or(body, |value| value)
        .trim()
        .parse()
        .unwrap_or(1);
    for _ in 0..batch.min(BATCH_MAX) {
        connection.sequence += 1;
        let n = connection.sequence;
        let ack = format!("$JS.ACK.{names}.1.{n}.{n}.1700000000000000000.100000");
        connection.deliver(inbox, b"b.js", ack.as_bytes(), 0, &PAYLOAD);
    }
}

fn direct_get(connection: &mut Connection<'_>, names: &str, reply: &[u8]) {
    let (stream, subject) = names.split_once('.').unwrap_or((names, "x"));
    let mut block = format!(
        "NATS/1.0\r\nNats-Stream: {stream}\r\nNats-Subject: {subject}\r\nNats-Sequence: 1\r\nNats-Time-Stamp: {CREATED}\r\n\r\n"
    )
    .into_bytes();
    let header = block.len();
    block.extend_from_slice(&PAYLOAD);
    connection.answer(reply, b"", header, &block);
}

/// The text of a member of a JSON object: a number or an object without braces in its strings.
fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    let value = json[json.find(&key)? + key.len()..].trim_start();
    let mut depth = 0usize;
    let end = value.char_indices().find_map(|(at, c)| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' if depth == 0 => return Some(at),
            '}' | ']' => {
                depth -= 1;
                return (depth == 0).then_some(at + 1);
            }
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    });
    Some(&value[..end?])
}

#[cfg(test)]
mod tests {
    use super::member;

    #[test]
    fn members() {
        let json = r#"{"batch": 5,"config":{"a":[1,{}],"b":2},"c":7}"#;
        assert_eq!(member(json, "batch"), Some("5"));
        assert_eq!(member(json, "config"), Some(r#"{"a":[1,{}],"b":2}"#));
        assert_eq!(member(json, "c"), Some("7"));
        assert_eq!(member(json, "d"), None);
    }
}
