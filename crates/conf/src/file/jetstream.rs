//! The `jetstream` block.

use super::{JetStreamSettings, Settings};
use crate::options::{JetStreamOptions, JetStreamServerLimits, SyncInterval};
use crate::read::Reader;
use crate::value::{Entry, Map, Node, Value};

/// Files that may be read and written at the same time, at least and at most.
const CONCURRENT_IO: std::ops::RangeInclusive<i64> = 4..=8192;

/// Reads `jetstream`: a switch, or a map that turns it on unless it says otherwise.
pub(super) fn jetstream(settings: &mut Settings, entry: &Entry, reader: &mut Reader) {
    let node = &entry.node;
    match &node.value {
        Value::Bool(enabled) => settings.jetstream.enabled = *enabled,
        Value::Text(word) => match word.to_ascii_lowercase().as_str() {
            "enabled" | "enable" => settings.jetstream.enabled = true,
            "disabled" | "disable" => settings.jetstream.enabled = false,
            _ => {
                let reason = format!("Expected 'enabled' or 'disabled' for string value, got '{word}'");
                reader.problem(&node.at, reason);
            }
        },
        Value::Map(map) => {
            settings.jetstream = JetStreamSettings {
                enabled: true,
                options: JetStreamOptions::default(),
            };
            block(settings, map, reader);
        }
        other => {
            let reason = format!(
                "Expected map, bool or string to define JetStream, got {}",
                other.type_name()
            );
            reader.problem(&node.at, reason);
        }
    }
}

fn block(settings: &mut Settings, map: &Map, reader: &mut Reader) {
    for entry in map.entries() {
        let key = entry.key.to_ascii_lowercase();
        match key.as_str() {
            "enabled" | "enable" => {
                settings.jetstream.enabled = reader.bool(&entry.node).unwrap_or(true);
                continue;
            }
            "store_dir" | "store" | "storedir" => {
                settings.jetstream.options.store_dir = reader.text_if_any(&entry.node);
                check_store_dir(settings, entry, reader);
                continue;
            }
            _ => {}
        }
        let options = &mut settings.jetstream.options;
        if !storage(options, &key, entry, reader) && !queues(options, &key, entry, reader) {
            match key.as_str() {
                "key"
                | "ek"
                | "encryption_key"
                | "prev_key"
                | "prev_ek"
                | "prev_encryption_key"
                | "cipher"
                | "tpm"
                | "extension_hint" => reader.unsupported(entry),
                _ => reader.unknown(entry),
            }
        }
    }
}

/// The directory may be given in one place only.
pub(super) fn check_store_dir(settings: &Settings, entry: &Entry, reader: &mut Reader) {
    if settings.store_dir.is_some() && settings.jetstream.options.store_dir.is_some() {
        reader.problem(&entry.node.at, "Duplicate 'store_dir' configuration");
    }
}

fn storage(options: &mut JetStreamOptions, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let node = &entry.node;
    match key {
        "max_memory_store" | "max_mem_store" | "max_mem" => {
            options.max_memory = size("max_mem_store", node, reader);
        }
        "max_file_store" | "max_file" => options.max_store = size("max_file_store", node, reader),
        "sync_interval" | "sync" => options.sync_interval = sync_interval(entry, reader),
        "domain" => {
            options.domain = reader.text_if_any(node);
            if options.domain.as_ref().is_some_and(|domain| !is_domain(domain)) {
                reader.problem(
                    &node.at,
                    "invalid domain name: may not contain ., * or >, nor spaces",
                );
            }
        }
        "unique_tag" => options.unique_tag = reader.text_if_any(node).map(|tag| tag.trim().to_lowercase()),
        "strict" => options.strict = reader.bool(node).unwrap_or(true),
        "limits" => limits(&mut options.limits, node, reader),
        "max_outstanding_catchup" => options.max_outstanding_catchup = size(key, node, reader),
        "max_concurrent_io" => {
            if let Some(value) = reader.integer(node) {
                match u32::try_from(value) {
                    Ok(files) if CONCURRENT_IO.contains(&value) => options.max_concurrent_io = files,
                    _ => {
                        let reason = format!(
                            "Expected an absolute size for {:?} between 4 and 8192, got {value}",
                            entry.key
                        );
                        reader.problem(&node.at, reason);
                    }
                }
            }
        }
        _ => return false,
    }
    true
}

fn queues(options: &mut JetStreamOptions, key: &str, entry: &Entry, reader: &mut Reader) -> bool {
    let node = &entry.node;
    match key {
        "max_buffered_size" => options.max_buffered_size = size(key, node, reader),
        "max_buffered_msgs" => options.max_buffered_msgs = reader.number(entry).filter(|max| *max > 0),
        "request_queue_limit" => {
            let before = options.request_queue_limit;
            options.request_queue_limit =
                reader.number_or(entry, JetStreamOptions::default().request_queue_limit);
            // Unless it has a limit of its own, the queue of INFO requests is as long.
            if options.info_queue_limit == before {
                options.info_queue_limit = options.request_queue_limit;
            }
        }
        "info_queue_limit" => {
            options.info_queue_limit = reader.number_or(entry, options.request_queue_limit);
        }
        "meta_compact" => options.meta_compact = reader.number(entry).filter(|entries| *entries > 0),
        "meta_compact_size" => options.meta_compact_size = size(key, node, reader),
        "meta_compact_sync" => options.meta_compact_sync = reader.bool(node).unwrap_or(false),
        _ => return false,
    }
    true
}

fn sync_interval(entry: &Entry, reader: &mut Reader) -> SyncInterval {
    if matches!(&entry.node.value, Value::Text(word) if word.eq_ignore_ascii_case("always")) {
        return SyncInterval::Always;
    }
    reader
        .duration(entry)
        .map_or(SyncInterval::Always, SyncInterval::Every)
}

fn is_domain(domain: &str) -> bool {
    !domain.contains(|c: char| c.is_whitespace() || matches!(c, '.' | '*' | '>'))
}

/// Bytes: an integer, or a string that ends in K, M, G or T, each 1,024 times the one before. Nothing, an empty
/// string and a negative number stand for the built-in value.
fn size(name: &str, node: &Node, reader: &mut Reader) -> Option<u64> {
    let text = match &node.value {
        Value::Integer(value) => return u64::try_from(*value).ok(),
        Value::Text(text) => text,
        _ => {
            reader.problem(&node.at, format!("{name} must be int64 or string"));
            return None;
        }
    };
    if text.is_empty() {
        return None;
    }
    let shift = match text.bytes().last() {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ => {
            reader.problem(
                &node.at,
                format!("{name} sizes defined as strings must end in K, M, G, T"),
            );
            return None;
        }
    };
    let number = text
        .get(..text.len() - 1)
        .and_then(|digits| digits.parse::<i64>().ok());
    match number.and_then(|number| number.checked_mul(1i64 << shift)) {
        Some(value) => u64::try_from(value).ok(),
        None => {
            reader.problem(&node.at, format!("{name} {text:?} is not a size"));
            None
        }
    }
}

fn limits(limits: &mut JetStreamServerLimits, node: &Node, reader: &mut Reader) {
    let Some(map) = reader.map(node) else { return };
    for entry in map.entries() {
        match entry.key.to_ascii_lowercase().as_str() {
            "max_ack_pending" => limits.max_ack_pending = positive(entry, reader),
            "max_ha_assets" => limits.max_ha_assets = positive(entry, reader),
            "max_request_batch" => limits.max_request_batch = positive(entry, reader),
            "duplicate_window" => {
                limits.duplicate_window = reader.strict_duration(entry).filter(|window| !window.is_zero());
            }
            "batch" => batch(limits, &entry.node, reader),
            _ => reader.unknown(entry),
        }
    }
}

fn batch(limits: &mut JetStreamServerLimits, node: &Node, reader: &mut Reader) {
    let Some(map) = reader.map(node) else { return };
    for entry in map.entries() {
        match entry.key.to_ascii_lowercase().as_str() {
            "max_inflight_per_stream" => limits.batch_max_inflight_per_stream = positive(entry, reader),
            "max_inflight_total" => limits.batch_max_inflight_total = positive(entry, reader),
            "max_msgs" => limits.batch_max_msgs = positive(entry, reader),
            "timeout" => {
                limits.batch_timeout = reader.strict_duration(entry).filter(|timeout| !timeout.is_zero());
            }
            _ => reader.unknown(entry),
        }
    }
}

/// A limit, where 0 and negative numbers stand for none.
fn positive(entry: &Entry, reader: &mut Reader) -> Option<u64> {
    reader.unlimited_if_not_positive(entry, None)
}
