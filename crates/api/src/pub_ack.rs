//! Publish acknowledgements, formatted by hand: they are the one answer that is written for every message.

use crate::json::to_json;
use crate::response::ErrorBody;
use tidelock_base::ApiError;

/// Appends `{"stream":"S","seq":7}`, with `"domain"` after the name if there is one and `"duplicate": true` at the
/// end if it is one (the space is what nats-server writes). Names are plain: stream and domain names hold nothing
/// that JSON escapes, and what a lenient configuration lets through is escaped all the same.
pub fn write_pub_ack(out: &mut Vec<u8>, stream: &str, domain: &str, seq: u64, duplicate: bool) {
    out.extend_from_slice(b"{\"stream\":");
    write_name(out, stream);
    if !domain.is_empty() {
        out.extend_from_slice(b",\"domain\":");
        write_name(out, domain);
    }
    out.extend_from_slice(b",\"seq\":");
    write_number(out, seq);
    out.extend_from_slice(if duplicate { b",\"duplicate\": true}" } else { b"}" });
}

/// Appends `{"error":{…},"stream":"S","seq":0}`.
pub fn write_pub_ack_error(out: &mut Vec<u8>, stream: &str, error: &ApiError) {
    out.extend_from_slice(b"{\"error\":");
    out.extend_from_slice(&to_json(&ErrorBody::from(error)));
    out.extend_from_slice(b",\"stream\":");
    write_name(out, stream);
    out.extend_from_slice(b",\"seq\":0}");
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    let plain = |b: u8| (0x20..0x7f).contains(&b) && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'&');
    if name.bytes().all(plain) {
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(&to_json(name));
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; 20];
    let mut rest = number;
    let mut length = 0;
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
        length += 1;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - length..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_base::ApiErrorCode;

    fn ack(stream: &str, domain: &str, seq: u64, duplicate: bool) -> String {
        let mut out = Vec::new();
        write_pub_ack(&mut out, stream, domain, seq, duplicate);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn acknowledgements_are_those_of_nats_server() {
        assert_eq!(ack("T1", "", 1, false), r#"{"stream":"T1","seq":1}"#);
        assert_eq!(
            ack("T1", "", 2, true),
            r#"{"stream":"T1","seq":2,"duplicate": true}"#
        );
        assert_eq!(
            ack("ORD", "edge", 1, false),
            r#"{"stream":"ORD","domain":"edge","seq":1}"#
        );
        assert_eq!(ack("S", "", 0, false), r#"{"stream":"S","seq":0}"#);
        assert_eq!(
            ack("S", "", u64::MAX, false),
            r#"{"stream":"S","seq":18446744073709551615}"#
        );
    }

    #[test]
    fn an_error_takes_the_place_of_the_sequence() {
        let mut out = Vec::new();
        let error = ApiError::with(ApiErrorCode::StreamWrongLastSequence, &["1"]);
        write_pub_ack_error(&mut out, "T1", &error);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"T1","seq":0}"#
        );
    }
}
