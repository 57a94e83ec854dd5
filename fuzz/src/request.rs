//! Requests to the JetStream API, read and checked as far as that goes without a stream.

use std::collections::BTreeMap;

use tidelock_api::{CreateConsumerRequest, StreamConfigRequest, decode_strict};
use tidelock_base::Wall;
use tidelock_jetstream::config::{
    ConfigLimits, ConsumerConfig, ConsumerContext, ConsumerTarget, StreamConfig, StreamMap,
    check_consumer_names, check_consumer_update, check_create_request, check_stream_update,
    validate_consumer, validate_stream,
};

/// A body, read by every decoder; where it is the configuration of a stream or a consumer, that is checked too, and
/// what was found valid must survive being stored and must be a permitted update of itself.
pub fn api(data: &[u8]) {
    tidelock_api::fuzz(data);
    let limits = ConfigLimits {
        clustered: true,
        ..ConfigLimits::default()
    };
    if let Ok(request) = decode_strict::<StreamConfigRequest>(data, false) {
        stream(&request, &limits);
    }
    if let Ok(request) = decode_strict::<CreateConsumerRequest>(data, false) {
        consumer(request, &limits);
    }
}

fn stream(request: &StreamConfigRequest, limits: &ConfigLimits) {
    let _ = check_create_request(&request.config.name, &request.config);
    let catalog = StreamMap(BTreeMap::new());
    let _ = validate_stream(&request.config, limits, &catalog, true);
    let Ok(valid) = validate_stream(&request.config, limits, &catalog, false) else {
        return;
    };
    assert_eq!(
        StreamConfig::decode(&valid.encode()).as_ref(),
        Ok(&valid),
        "it survives being stored"
    );
    let again = validate_stream(&valid.to_api(), limits, &catalog, false);
    assert_eq!(again.as_ref(), Ok(&valid), "what is valid stays as it is");
    if !valid.sealed {
        assert_eq!(
            check_stream_update(&valid, &valid).as_ref(),
            Ok(&valid),
            "no change is a change"
        );
    }
}

fn consumer(mut request: CreateConsumerRequest, limits: &ConfigLimits) {
    let stream = request.stream_name.clone();
    let _ = check_consumer_names(ConsumerTarget::Durable("c"), &stream, &mut request.clone());
    if check_consumer_names(ConsumerTarget::Ephemeral, &stream, &mut request).is_err() {
        return;
    }
    let plain = StreamConfigRequest::default();
    let mut config = plain.config;
    "S".clone_into(&mut config.name);
    config.subjects = vec!["a.>".to_owned()];
    let Ok(stream) = validate_stream(&config, limits, &StreamMap(BTreeMap::new()), false) else {
        return;
    };
    let context = ConsumerContext {
        stream: &stream,
        limits,
        now: Wall(1),
        auto_name: "AbCdEf01",
    };
    let _ = validate_consumer(&request.config, &context, true);
    let Ok(valid) = validate_consumer(&request.config, &context, false) else {
        return;
    };
    assert_eq!(
        ConsumerConfig::decode(&valid.encode()).as_ref(),
        Ok(&valid),
        "it survives being stored"
    );
    let _ = check_consumer_update(&valid, &valid);
}
