use super::*;
use crate::has_wildcard;
use crate::matching::tests::{filter, literal, naive};
use proptest::prelude::*;

#[test]
fn results_and_errors_are_those_of_nats_server() {
    for line in include_str!("transforms.txt")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let [source, destination, subject, expected] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("not four columns: {line}");
        };
        let result = match Transform::parse(source, destination) {
            Err(error) => format!("! {error}"),
            // A stream stores a subject that is not transformed as it is.
            Ok(transform) => {
                let out = transform
                    .apply(subject.as_bytes(), 0)
                    .unwrap_or_else(|| subject.into());
                String::from_utf8(out).unwrap()
            }
        };
        assert_eq!(result, expected, "{line}");
    }
}

#[test]
fn invalid_sources_are_refused() {
    for source in ["a..b", "a b", ">.a", "."] {
        assert_eq!(
            Transform::parse(source, "x"),
            Err(TransformError::InvalidSubject),
            "{source}"
        );
        assert_eq!(
            Transform::parse_import(source, "x"),
            Err(TransformError::InvalidSubject),
            "{source}"
        );
    }
}

#[test]
fn imports_are_strict() {
    let import = |source, destination| {
        Transform::parse_import(source, destination)
            .map(|t| String::from_utf8(t.apply(b"a.b.c", 0).unwrap_or_default()).unwrap())
            .map_err(|e| e.to_string())
    };
    assert_eq!(import("a.*.*", "x.$2.{{wildcard(1)}}"), Ok("x.c.b".to_owned()));
    assert_eq!(import("a.*.*", "x.*.y.*"), Ok("x.b.y.c".to_owned()));
    assert_eq!(import("a.*.>", "x.*.>"), Ok("x.b.c".to_owned()));
    assert_eq!(import("a.>", "x.>"), Ok("x.b.c".to_owned()));
    for (source, destination, error) in [
        (
            "a.*.*",
            "x.$1",
            "invalid mapping destination: not using all of the token wildcard(s) in x.$1",
        ),
        (
            "a.*",
            "x.{{left(1,2)}}",
            "invalid mapping destination: the only mapping function allowed for import transforms is {{Wildcard()}} in {{left(1,2)}}",
        ),
        (
            "a.*",
            "x.{{wildcard(2)}}",
            "invalid mapping destination: wildcard index out of range in {{wildcard(2)}}: [2]",
        ),
        ("a.*", "x..$1", "invalid subject"),
        ("a.*", "x.>", "invalid subject"),
    ] {
        assert_eq!(
            import(source, destination),
            Err(error.to_owned()),
            "{destination}"
        );
    }
}

#[test]
fn random_follows_the_seed() {
    let transform = Transform::parse("a.*", "x.{{random(10)}}.{{random(10)}}").unwrap();
    assert!(transform.needs_seed() && !Transform::parse("a.*", "x.$1").unwrap().needs_seed());
    let results: Vec<Vec<u8>> = (0..200)
        .map(|seed| transform.apply(b"a.b", seed).unwrap())
        .collect();
    let again: Vec<Vec<u8>> = (0..200)
        .map(|seed| transform.apply(b"a.b", seed).unwrap())
        .collect();
    assert_eq!(results, again);
    for digit in b'0'..=b'9' {
        assert!(results.iter().any(|r| r[2] == digit) && results.iter().any(|r| r[4] == digit));
    }
    assert!(
        results.iter().any(|r| r[2] != r[4]),
        "the two numbers are drawn apart"
    );
}

proptest! {
    /// Swapping the first two wildcards, stated on lists of tokens.
    #[test]
    fn wildcards_take_the_tokens_they_matched(first in literal(), f in filter(), l in literal()) {
        let (f, l) = (format!("*.{f}.*"), format!("{first}.{l}"));
        let f = f.replace(">.*", "*.>");
        let stars: Vec<usize> = f.split('.').enumerate().filter(|(_, t)| *t == "*").map(|(i, _)| i).collect();
        let tail = if f.ends_with('>') { ".>" } else { "" };
        let transform = Transform::parse(&f, &format!("out.$2.{{{{wildcard(1)}}}}{tail}")).unwrap();
        let parts: Vec<&str> = l.split('.').collect();
        let expected = naive(&f, &l).then(|| {
            let mut out = vec!["out", parts[stars[1]], parts[stars[0]]];
            if f.ends_with('>') {
                out.extend(&parts[f.split('.').count() - 1..]);
            }
            out.join(".").into_bytes()
        });
        prop_assert_eq!(transform.apply(l.as_bytes(), 0), expected);
    }

    /// Whatever is written, parsing and applying give an answer.
    #[test]
    fn nothing_panics(
        source in "[a*>. $]{0,8}",
        destination in r"([a*>.$ ]|\{\{|\}\}|\$[0-9-]{1,3}|\{\{ ?[a-zA-Z]{1,5} ?\([0-9,* -]{0,6}\)\}\}|\{\{(split|left|slicefromright|partition)\([0-9]{1,2},[0-9é-]{0,2}\)\}\}){0,6}",
        subject in "[aé-]{1,4}(\\.[aé-]{0,4}){0,3}",
        seed in any::<u64>(),
    ) {
        for transform in [Transform::parse(&source, &destination), Transform::parse_import(&source, &destination)] {
            if let Ok(transform) = transform
                && let Some(out) = transform.apply(subject.as_bytes(), seed)
            {
                prop_assert!(transform.source().matches(subject.as_bytes()));
                prop_assert!(!has_wildcard(&out) || has_wildcard(subject.as_bytes()));
            }
        }
    }

    /// Cutting loses nothing: without its dots the result is the token.
    #[test]
    fn slices_and_splits_keep_the_bytes(token in "[a-e]{1,12}", size in 0usize..14) {
        for name in ["splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight"] {
            let transform = Transform::parse("*", &format!("{{{{{name}(1,{size})}}}}")).unwrap();
            let out = String::from_utf8(transform.apply(token.as_bytes(), 0).unwrap()).unwrap();
            prop_assert_eq!(out.replace('.', ""), token.clone());
            prop_assert!(!crate::matching::has_empty_token(out.as_bytes()));
            if name.starts_with("slice") && size > 0 {
                prop_assert!(out.split('.').all(|piece| piece.len() <= size));
            }
        }
    }
}
