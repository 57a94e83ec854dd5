//! Subjects, filters and transforms.

use tidelock_subject::{Transform, is_subset, is_valid_filter, is_valid_literal, matches, overlaps};

/// Two filters and a subject, a line each: what matches, contains and overlaps must agree; and the filters as source
/// and destination of a transform of the subject.
pub fn subject(data: &[u8]) {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (a, b, literal) = (line(), line(), line());
    if let (Ok(source), Ok(destination)) = (str::from_utf8(a), str::from_utf8(b)) {
        for transform in [
            Transform::parse(source, destination),
            Transform::parse_import(source, destination),
        ] {
            let Ok(transform) = transform else { continue };
            let _ = (transform.destination(), transform.needs_seed());
            if let Some(out) = transform.apply(literal, 1) {
                assert_eq!(
                    transform.apply(literal, 1),
                    Some(out),
                    "the same in, the same out"
                );
            }
        }
    }
    let matched = (matches(a, literal), matches(b, literal));
    if !is_valid_filter(a) || !is_valid_filter(b) || !is_valid_literal(literal) {
        return;
    }
    assert_eq!(overlaps(a, b), overlaps(b, a), "overlapping is mutual");
    assert!(is_subset(a, a), "a filter contains itself");
    if is_subset(a, b) {
        assert!(overlaps(a, b), "a part overlaps the whole");
        assert!(!matched.1 || matched.0, "what a part matches the whole does");
    }
    assert!(
        matched != (true, true) || overlaps(a, b),
        "what both match is an overlap"
    );
}
