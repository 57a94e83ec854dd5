//! Subject transforms: a source filter and a destination that says what becomes of a subject that matches it. Used by
//! account mappings, stream transforms, sources and mirrors, republish and account imports (ADR-30).
//!
//! Parsing goes through three phases, each over all tokens of the destination, because that decides which error a
//! destination with several faults gets: its form, the wildcards of both sides, the functions and their arguments.

mod function;

use crate::matching::{is_valid_filter, matches, tokens};
use crate::{SubjectError, SubjectFilter};
use function::{Function, Side, parse_function};
use smallvec::SmallVec;
use std::io::Write as _;

/// Why a transform is refused. The texts are nats-server's; where it names the token at fault, so do they.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransformError {
    /// The source is no valid filter, `*` stands in the destination, or `>` on one side only.
    #[error("invalid subject")]
    InvalidSubject,
    /// The destination has an empty token or white space outside of a function.
    #[error("invalid mapping destination: invalid transform")]
    InvalidDestination,
    /// A token follows `>` in the destination.
    #[error("invalid mapping destination: invalid transform in {0}")]
    AfterRest(String),
    /// `{{…}}` that is no function known.
    #[error("invalid mapping destination: unknown function in {0}")]
    UnknownFunction(String),
    /// A function names a wildcard that the source does not have. The number is absent if the source has no wildcard
    /// at all.
    #[error("invalid mapping destination: wildcard index out of range in {token}{}", index_suffix(*.index))]
    IndexOutOfRange {
        /// The token at fault.
        token: String,
        /// The wildcard it asks for, counted from 1.
        index: Option<i64>,
    },
    /// A function has too few arguments.
    #[error("invalid mapping destination: not enough arguments passed to the function in {0}")]
    NotEnoughArguments(String),
    /// An argument is no number, out of range, or a delimiter that cannot be.
    #[error("invalid mapping destination: function argument is invalid or in the wrong format in {0}")]
    InvalidArgument(String),
    /// A function has too many arguments.
    #[error("invalid mapping destination: too many arguments passed to the function in {0}")]
    TooManyArguments(String),
    /// An import does not use every wildcard of its source.
    #[error("invalid mapping destination: not using all of the token wildcard(s) in {0}")]
    WildcardsUnused(String),
    /// An import uses a function other than `wildcard`.
    #[error(
        "invalid mapping destination: the only mapping function allowed for import transforms is {{{{Wildcard()}}}} in {0}"
    )]
    NotForImport(String),
}

fn index_suffix(index: Option<i64>) -> String {
    index.map_or_else(String::new, |i| format!(": [{i}]"))
}

impl From<SubjectError> for TransformError {
    fn from(_: SubjectError) -> Self {
        Self::InvalidSubject
    }
}

/// A checked transform. Equal transforms have the same source and do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transform {
    source: SubjectFilter,
    destination: String,
    /// One for each token of the destination. None at all stands for the identity.
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Box<[u8]>),
    Function(Function),
    /// The tokens from this place of the subject on, for `>`.
    Rest(usize),
}

/// What the wildcards of a source are.
struct Source<'a> {
    text: &'a str,
    /// Places of the `*` among the tokens.
    stars: Vec<usize>,
    /// Place of `>`.
    rest: Option<usize>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let places = |wanted: &'static str| {
            text.split('.')
                .enumerate()
                .filter(move |(_, token)| *token == wanted)
                .map(|(at, _)| at)
        };
        Self {
            text,
            stars: places("*").collect(),
            rest: places(">").next(),
        }
    }

    const fn is_literal(&self) -> bool {
        self.stars.is_empty() && self.rest.is_none()
    }

    /// The place in the subject of the n-th `*`, from 1. Like nats-server, 0 and less mean the first token.
    fn place(&self, token: &str, index: i64) -> Result<usize, TransformError> {
        let Some(before) = index.checked_sub(1).filter(|i| *i >= 0) else {
            return Ok(0);
        };
        usize::try_from(before)
            .ok()
            .and_then(|before| self.stars.get(before).copied())
            .ok_or_else(|| TransformError::IndexOutOfRange {
                token: token.to_owned(),
                index: Some(index),
            })
    }
}

impl Transform {
    /// Parses a transform. An empty source means `>`; an empty destination leaves subjects as they are.
    ///
    /// # Errors
    /// See [`TransformError`]; the first fault found is reported, in the order that nats-server looks for them.
    pub fn parse(source: &str, destination: &str) -> Result<Self, TransformError> {
        let source = Source::new(if source.is_empty() { ">" } else { source });
        if !is_valid_filter(source.text.as_bytes()) {
            return Err(TransformError::InvalidSubject);
        }
        if destination.is_empty() {
            return Self::new(&source, destination, Vec::new());
        }
        check_form(destination)?;
        let has_rest = destination.split('.').any(|token| token == ">");
        if destination.split('.').any(|token| token == "*") || has_rest != source.rest.is_some() {
            return Err(TransformError::InvalidSubject);
        }
        let pieces = destination
            .split('.')
            .map(|token| parse_piece(&source, token))
            .collect::<Result<_, _>>()?;
        Self::new(&source, destination, pieces)
    }

    /// Parses the transform of an account import: only `$n` and `{{wildcard(n)}}` are allowed, all wildcards of the
    /// source must be used, and a bare `*` in the destination stands for the next wildcard of the source.
    ///
    /// # Errors
    /// See [`TransformError`].
    pub fn parse_import(source: &str, destination: &str) -> Result<Self, TransformError> {
        let source = Source::new(source);
        let has_rest = destination.split('.').any(|token| token == ">");
        if !is_valid_filter(source.text.as_bytes())
            || !is_valid_form(destination)
            || has_rest != source.rest.is_some()
        {
            return Err(TransformError::InvalidSubject);
        }
        let mut used = 0;
        let mut pieces = Vec::new();
        for token in destination.split('.') {
            let piece = if token == "*" {
                let place = source.place(token, i64::try_from(used + 1).unwrap_or(i64::MAX))?;
                Piece::Function(Function::Token(place))
            } else {
                parse_piece(&source, token)?
            };
            match piece {
                Piece::Function(Function::Token(_)) => used += 1,
                Piece::Function(_) => return Err(TransformError::NotForImport(token.to_owned())),
                Piece::Literal(_) | Piece::Rest(_) => {}
            }
            pieces.push(piece);
        }
        if used < source.stars.len() {
            return Err(TransformError::WildcardsUnused(destination.to_owned()));
        }
        Self::new(&source, destination, pieces)
    }

    fn new(source: &Source<'_>, destination: &str, pieces: Vec<Piece>) -> Result<Self, TransformError> {
        Ok(Self {
            source: source.text.parse()?,
            destination: destination.to_owned(),
            pieces,
        })
    }

    /// The filter that a subject must match.
    #[must_use]
    pub const fn source(&self) -> &SubjectFilter {
        &self.source
    }

    /// The destination as it was written.
    #[must_use]
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Whether the result depends on the seed, because the destination has `{{random(n)}}`.
    #[must_use]
    pub fn needs_seed(&self) -> bool {
        self.pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Function(Function::Random(_))))
    }

    /// What becomes of the subject, or `None` if the source does not match it.
    ///
    /// The result is not always a valid literal: `split` of a token of delimiters alone leaves an empty token.
    /// `{{random(n)}}` draws from `seed`, so equal arguments give equal results.
    #[must_use]
    pub fn apply(&self, subject: &[u8], seed: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.apply_into(subject, seed, &mut out).then_some(out)
    }

    /// Like [`Self::apply`], but appends the result to `out`; false, with nothing appended, if the source does not
    /// match.
    pub fn apply_into(&self, subject: &[u8], seed: u64, out: &mut Vec<u8>) -> bool {
        if !matches(&self.source, subject) {
            return false;
        }
        if self.pieces.is_empty() {
            out.extend_from_slice(subject);
            return true;
        }
        let parts: SmallVec<[&[u8]; 16]> = tokens(subject).collect();
        let mut draw = seed;
        for (i, piece) in self.pieces.iter().enumerate() {
            if i > 0 {
                out.push(b'.');
            }
            match piece {
                Piece::Literal(text) => out.extend_from_slice(text),
                Piece::Rest(from) => join(parts.get(*from..).unwrap_or_default().iter().copied(), out),
                Piece::Function(function) => apply_function(function, subject, &parts, &mut draw, out),
            }
        }
        true
    }
}

/// Whether every token is something and has no white space, functions left aside.
fn is_valid_form(destination: &str) -> bool {
    !matches!(
        check_form(destination),
        Err(TransformError::InvalidDestination | TransformError::AfterRest(_))
    )
}

/// The first phase: form of the tokens, and functions by name.
fn check_form(destination: &str) -> Result<(), TransformError> {
    let mut closed = false;
    for token in destination.split('.') {
        if token.is_empty() {
            return Err(TransformError::InvalidDestination);
        }
        if function::is_call(token) {
            function::name_and_arguments(token)?;
        } else if token.contains([' ', '\t', '\r', '\n', '\x0c']) {
            return Err(TransformError::InvalidDestination);
        }
        if closed {
            return Err(TransformError::AfterRest(token.to_owned()));
        }
        closed = token == ">";
    }
    Ok(())
}

/// The third phase, for one token.
fn parse_piece(source: &Source<'_>, token: &str) -> Result<Piece, TransformError> {
    if let (">", Some(from)) = (token, source.rest) {
        return Ok(Piece::Rest(from));
    }
    match parse_function(source, token)? {
        Some(function) => Ok(Piece::Function(function)),
        None => Ok(Piece::Literal(token.as_bytes().into())),
    }
}

/// Writes tokens with dots between them.
fn join<'a>(parts: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for (i, part) in parts.enumerate() {
        if i > 0 {
            out.push(b'.');
        }
        out.extend_from_slice(part);
    }
}

fn apply_function(function: &Function, subject: &[u8], parts: &[&[u8]], draw: &mut u64, out: &mut Vec<u8>) {
    let part = |at: &usize| parts.get(*at).copied().unwrap_or_default();
    match function {
        Function::Token(at) => out.extend_from_slice(part(at)),
        Function::Partition { count, of } => {
            let hash = fnv1a(of.iter().flat_map(part));
            write_number(hash.checked_rem(*count).unwrap_or(0), out);
        }
        Function::PartitionAll(count) => {
            let hash = fnv1a(subject.iter());
            write_number(hash.checked_rem(*count).unwrap_or(0), out);
        }
        Function::Random(count) => {
            let number = u32::try_from(next_random(draw) >> 32).unwrap_or(0);
            write_number(number.checked_rem(*count).unwrap_or(0), out);
        }
        Function::Split { at, delimiter } => split(part(at), delimiter, out),
        Function::SplitFrom { side, at, size } => {
            let token = part(at);
            match cut(token, *side, *size) {
                Some((left, right)) => join([left, right].into_iter(), out),
                None => out.extend_from_slice(token),
            }
        }
        Function::Slice { side, at, size } => slice(part(at), *side, *size, out),
        Function::Part { side, at, size } => {
            let token = part(at);
            out.extend_from_slice(match (cut(token, *side, *size), side) {
                (None, _) => token,
                (Some((left, _)), Side::Left) => left,
                (Some((_, right)), Side::Right) => right,
            });
        }
    }
}

/// The two parts of a token cut `size` bytes from a side; `None` if one of them would be empty.
fn cut(token: &[u8], side: Side, size: usize) -> Option<(&[u8], &[u8])> {
    if size == 0 || size >= token.len() {
        return None;
    }
    match side {
        Side::Left => token.split_at_checked(size),
        Side::Right => token.split_at_checked(token.len() - size),
    }
}

/// Cuts a token into pieces of `size` bytes; the short piece is the last from the left, the first from the right.
fn slice(token: &[u8], side: Side, size: usize, out: &mut Vec<u8>) {
    if size == 0 || size >= token.len() {
        out.extend_from_slice(token);
        return;
    }
    let short = match side {
        Side::Left => 0,
        Side::Right => token.len() % size,
    };
    let (first, rest) = token.split_at_checked(short).unwrap_or((token, &[]));
    out.extend_from_slice(first);
    if !first.is_empty() {
        out.push(b'.');
    }
    join(rest.chunks(size), out);
}

/// Writes the parts of the token between delimiters; empty ones are dropped. An empty delimiter cuts between the
/// characters of UTF-8.
fn split(token: &[u8], delimiter: &[u8], out: &mut Vec<u8>) {
    if delimiter.is_empty() {
        let is_start = |b: u8| b & 0xc0 != 0x80;
        join(token.chunk_by(|_, next| !is_start(*next)), out);
        return;
    }
    let mut rest = Some(token);
    let parts = std::iter::from_fn(|| {
        loop {
            let text = rest?;
            let at = text
                .windows(delimiter.len())
                .position(|window| window == delimiter);
            let end = at.unwrap_or(text.len());
            rest = at.and_then(|at| text.get(at + delimiter.len()..));
            match text.get(..end) {
                Some(part) if !part.is_empty() => return Some(part),
                Some(_) | None => {}
            }
        }
    });
    join(parts, out);
}

/// The 32-bit FNV-1a hash, which clients compute too to know the partition of a subject.
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The next number of the sequence that starts from a seed (SplitMix64 by Steele, Lea and Flood).
const fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn write_number(number: u32, out: &mut Vec<u8>) {
    // Writing into a vector does not fail.
    let _ = write!(out, "{number}");
}

#[cfg(test)]
mod tests;
