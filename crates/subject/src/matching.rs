//! Validity and matching on plain bytes. Nothing here allocates.

/// Most tokens of a filter. It bounds the depth of interest trees, and with it the stack that walks and frees them;
/// a filter with more tokens is not valid. Literals have no such bound.
pub const FILTER_TOKENS_MAX: usize = 256;

/// The tokens of a subject or filter, in order. The empty subject has one empty token.
pub fn tokens(subject: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    subject.split(|&b| b == b'.')
}

/// Whether the token can stand in a subject at all: not empty, no white space.
fn is_valid_token(token: &[u8]) -> bool {
    !token.is_empty()
        && !token
            .iter()
            .any(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | 0x0c))
}

/// Whether the subject is valid and has no wildcard token, so that it names exactly one subject.
#[must_use]
pub fn is_valid_literal(subject: &[u8]) -> bool {
    tokens(subject).all(|token| is_valid_token(token) && token != b"*" && token != b">")
}

/// Whether the subject is valid, with wildcards allowed as whole tokens and `>` only as the last, and has at most
/// [`FILTER_TOKENS_MAX`] tokens.
#[must_use]
pub fn is_valid_filter(filter: &[u8]) -> bool {
    let mut count = 0usize;
    let mut closed = false;
    for token in tokens(filter) {
        if closed || !is_valid_token(token) {
            return false;
        }
        closed = token == b">";
        count += 1;
    }
    count <= FILTER_TOKENS_MAX
}

/// Whether a whole token of the subject is `*` or `>`.
#[must_use]
pub fn has_wildcard(subject: &[u8]) -> bool {
    tokens(subject).any(|token| token == b"*" || token == b">")
}

/// Whether the subject has an empty token, which no filter matches.
pub(crate) fn has_empty_token(subject: &[u8]) -> bool {
    let mut previous = b'.';
    for &b in subject {
        if b == b'.' && previous == b'.' {
            return true;
        }
        previous = b;
    }
    previous == b'.'
}

/// Cuts off the first token: `(token, rest)`, where the rest is `None` after the last token.
pub(crate) fn split_first(subject: &[u8]) -> (&[u8], Option<&[u8]>) {
    // Tokens are short, so a plain loop beats a vectorised search here.
    match subject.iter().position(|&b| b == b'.') {
        Some(at) => (
            subject.get(..at).unwrap_or_default(),
            Some(subject.get(at + 1..).unwrap_or_default()),
        ),
        None => (subject, None),
    }
}

/// Whether the filter matches the subject. Wildcards in `literal` are taken as plain tokens; a subject with an empty
/// token is matched by nothing.
#[must_use]
pub fn matches(filter: &[u8], literal: &[u8]) -> bool {
    if has_empty_token(literal) {
        return false;
    }
    let mut wanted = Some(filter);
    let mut found = Some(literal);
    loop {
        match (wanted, found) {
            (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(filter), Some(literal)) => {
                let (token, filter_rest) = split_first(filter);
                if token == b">" && filter_rest.is_none() {
                    return true;
                }
                let (name, literal_rest) = split_first(literal);
                if token != b"*" && token != name {
                    return false;
                }
                (wanted, found) = (filter_rest, literal_rest);
            }
        }
    }
}

/// Whether every subject that `inner` matches is matched by `outer` too. Both are valid filters; a filter is a subset
/// of itself.
#[must_use]
pub fn is_subset(outer: &[u8], inner: &[u8]) -> bool {
    let mut outer = Some(outer);
    let mut inner = Some(inner);
    loop {
        match (outer, inner) {
            (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(outside), Some(inside)) => {
                let (wide, outer_rest) = split_first(outside);
                if wide == b">" {
                    return true;
                }
                let (narrow, inner_rest) = split_first(inside);
                // `>` also stands for several tokens, which neither `*` nor a name covers.
                let covered = wide == narrow || wide == b"*";
                if narrow == b">" || !covered {
                    return false;
                }
                (outer, inner) = (outer_rest, inner_rest);
            }
        }
    }
}

/// Whether some subject is matched by both. Both are valid filters.
#[must_use]
pub fn overlaps(a: &[u8], b: &[u8]) -> bool {
    let mut left = Some(a);
    let mut right = Some(b);
    loop {
        match (left, right) {
            (None, None) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(a), Some(b)) => {
                let (x, a_rest) = split_first(a);
                let (y, b_rest) = split_first(b);
                if x == b">" || y == b">" {
                    return true;
                }
                if x != y && x != b"*" && y != b"*" {
                    return false;
                }
                (left, right) = (a_rest, b_rest);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Literals over a tiny alphabet, so that most pairs have something to do with each other.
    pub(crate) fn literal() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "c*"]), 1..5).prop_map(|t| t.join("."))
    }

    /// Filters over the same alphabet.
    pub(crate) fn filter() -> impl Strategy<Value = String> {
        (
            prop::collection::vec(prop::sample::select(vec!["a", "b", "c*", "*"]), 0..4),
            prop::sample::select(vec!["a", "b", "*", ">"]),
        )
            .prop_map(|(mut t, last)| {
                t.push(last);
                t.join(".")
            })
    }

    /// The definition of a match, on lists of tokens.
    pub(crate) fn naive_matches(filter: &[&str], literal: &[&str]) -> bool {
        match (filter, literal) {
            ([], []) => true,
            ([">"], [_, ..]) => true,
            (["*", f @ ..], [_, l @ ..]) => naive_matches(f, l),
            ([x, f @ ..], [y, l @ ..]) => x == y && naive_matches(f, l),
            _ => false,
        }
    }

    pub(crate) fn naive(filter: &str, literal: &str) -> bool {
        let f: Vec<&str> = filter.split('.').collect();
        let l: Vec<&str> = literal.split('.').collect();
        naive_matches(&f, &l)
    }

    /// Every literal of up to five tokens over an alphabet with one name that no filter uses: if two filters differ
    /// in what they match, they differ on one of these.
    pub(crate) fn universe() -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut last = vec![String::new()];
        for _ in 0..5 {
            let mut next = Vec::new();
            for base in &last {
                for t in ["a", "b", "c*", "z"] {
                    next.push(if base.is_empty() {
                        t.to_owned()
                    } else {
                        format!("{base}.{t}")
                    });
                }
            }
            all.extend(next.iter().cloned());
            last = next;
        }
        all
    }

    #[test]
    fn validity() {
        for good in [
            "a",
            "a.b",
            "foo*",
            "fo>o.b",
            "$JS.API.>",
            "*",
            ">",
            "*.*.>",
            "é.\u{7f}",
        ] {
            assert!(is_valid_filter(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ".", "a.", ".a", "a..b", "a b", "a\t", "a.\r", "a\n", "a\x0c", ">.a", "a.>.b",
        ] {
            assert!(!is_valid_filter(bad.as_bytes()), "{bad:?}");
            assert!(!is_valid_literal(bad.as_bytes()), "{bad:?}");
        }
        for (subject, literal) in [
            ("a", true),
            ("foo*.>x", true),
            ("*", false),
            ("a.>", false),
            ("a.*.b", false),
        ] {
            assert_eq!(is_valid_literal(subject.as_bytes()), literal, "{subject}");
            assert_eq!(has_wildcard(subject.as_bytes()), !literal, "{subject}");
        }
        let deep = vec!["a"; FILTER_TOKENS_MAX].join(".");
        assert!(is_valid_filter(deep.as_bytes()));
        assert!(!is_valid_filter(format!("{deep}.a").as_bytes()));
    }

    #[test]
    fn an_empty_token_is_matched_by_nothing() {
        for bad in ["", ".", "a.", ".a", "a..b"] {
            for filter in [">", "*", "a.>", "a.*", "a.*.b", "*.a"] {
                assert!(!matches(filter.as_bytes(), bad.as_bytes()), "{filter} {bad:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn matches_agrees_with_the_definition(f in filter(), l in literal()) {
            prop_assert_eq!(matches(f.as_bytes(), l.as_bytes()), naive(&f, &l));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn subset_and_overlap_agree_with_the_sets(a in filter(), b in filter()) {
            let mut subset = true;
            let mut overlap = false;
            for l in universe() {
                let (in_a, in_b) = (naive(&a, &l), naive(&b, &l));
                subset &= in_a || !in_b;
                overlap |= in_a && in_b;
            }
            prop_assert_eq!(is_subset(a.as_bytes(), b.as_bytes()), subset, "{} in {}", b, a);
            prop_assert_eq!(overlaps(a.as_bytes(), b.as_bytes()), overlap, "{} and {}", a, b);
        }
    }
}
