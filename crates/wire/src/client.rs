//! Parser of what a client sends.
//!
//! [`parse`] looks at the front of an input and gives the first event that is whole, with the number of bytes it
//! takes, or says what is missing and takes nothing. The caller keeps the rest and shows it again with more behind
//! it; a control line is bounded by its limit, so that looking at its front again costs little. Publishes in the form
//! that every client sends (`PUB subject [reply] size` in capitals with single spaces) have a path of their own that
//! reads each byte of the line once; everything else that the grammar allows goes the general way.

use memchr::memchr;

use crate::SIZE_DIGITS_MAX;
use crate::error::{ParseError, Verb};

/// Limits that a control line is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest arguments of a control line, in bytes, without verb and line end (`max_control_line`).
    pub control_line: usize,
    /// Most bytes of header and payload of a publish (`max_payload`).
    pub payload: usize,
}

/// What the front of an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole event, and the number of bytes it takes.
    Event(Event<'a>, usize),
    /// Not yet a whole control line; nothing is taken.
    NeedLine,
    /// A publish whose control line is whole and within the limits and whose payload is not; nothing is taken.
    NeedPayload {
        /// The control line.
        line: PubLine<'a>,
        /// Its length with verb and line end; header, payload and CRLF follow.
        line_len: usize,
    },
}

/// One message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// CONNECT, with its JSON.
    Connect(&'a [u8]),
    /// PUB or HPUB.
    Publish {
        /// The control line.
        line: PubLine<'a>,
        /// Header, payload and the CRLF behind them.
        block: &'a [u8],
        /// Everything after the subject, `[reply ]size\r\n…payload\r\n` or `[reply ]header_size size\r\n…`, if it is
        /// fit to be sent to a receiver as it stands; else empty.
        tail: &'a [u8],
    },
    /// SUB
    Sub {
        /// Subject, not checked.
        subject: &'a [u8],
        /// Queue group.
        queue: Option<&'a [u8]>,
        /// The client's name of the subscription.
        sid: &'a [u8],
    },
    /// UNSUB
    Unsub {
        /// The client's name of the subscription.
        sid: &'a [u8],
        /// Deliveries since the SUB after which it ends; 0 means now. What is not a number counts as 0.
        max: u64,
    },
    /// PING
    Ping,
    /// PONG
    Pong,
    /// +OK, which means nothing.
    Ok,
    /// -ERR, with its text.
    Err(&'a [u8]),
    /// INFO, with its JSON.
    Info(&'a [u8]),
}

/// The control line of a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PubLine<'a> {
    /// Subject; not empty, otherwise not checked.
    pub subject: &'a [u8],
    /// Reply subject; not empty, otherwise not checked.
    pub reply: Option<&'a [u8]>,
    /// Whether the verb was HPUB.
    pub has_header: bool,
    /// Bytes of the header block; 0 without one.
    pub header_len: usize,
    /// Bytes of header and payload.
    pub size: usize,
    /// The header size as it was written; receivers see the same digits.
    pub header_text: &'a [u8],
    /// The total size as it was written.
    pub size_text: &'a [u8],
    /// Where `[reply ]size` starts in the line if it is in canonical form, else 0.
    tail_at: usize,
}

/// The event at the front of `input`.
///
/// # Errors
/// [`ParseError`] if the input is wrong beyond repair; the connection is to be closed. An unknown verb is noticed
/// without its line end, a size over the limit without the payload.
#[inline]
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Result<Parsed<'a>, ParseError> {
    match canonical(input, limits.control_line) {
        Some((line, line_len)) => publish(input, line, line_len, limits),
        None => general(input, limits),
    }
}

/// The control line of a publish alone, for one that was kept while its payload was read. `None` if it is not one.
#[must_use]
pub fn parse_publish_line(line: &[u8]) -> Option<PubLine<'_>> {
    if let Some((line, _)) = canonical(line, usize::MAX) {
        return Some(line);
    }
    let VerbMatch::Whole(word, verb_len) = verb_of(line) else {
        return None;
    };
    let args = line.get(verb_len..)?;
    match word {
        Word::Pub => pub_args(args).ok(),
        Word::HeaderPub => header_pub_args(args).ok(),
        Word::Sub
        | Word::Unsub
        | Word::Connect
        | Word::Ping
        | Word::Pong
        | Word::Ok
        | Word::Err
        | Word::Info => None,
    }
}

/// Completes a publish with its payload.
#[inline]
fn publish<'a>(
    input: &'a [u8],
    line: PubLine<'a>,
    line_len: usize,
    limits: &Limits,
) -> Result<Parsed<'a>, ParseError> {
    if line.size > limits.payload {
        return Err(ParseError::MaxPayload {
            size: line.size,
            max: limits.payload,
        });
    }
    let end = line_len + line.size + 2;
    let Some(block) = input.get(line_len..end) else {
        // One byte of the line end is there: if it is wrong, nobody needs to wait for the other.
        return match input.get(end - 2) {
            Some(byte) if *byte != b'\r' => Err(ParseError::unknown_operation(
                input.get(end - 2..).unwrap_or_default(),
            )),
            _ => Ok(Parsed::NeedPayload { line, line_len }),
        };
    };
    if !block.ends_with(b"\r\n") {
        return Err(ParseError::unknown_operation(
            block.get(line.size..).unwrap_or_default(),
        ));
    }
    let tail = if line.tail_at == 0 {
        &[]
    } else {
        input.get(line.tail_at..end).unwrap_or_default()
    };
    Ok(Parsed::Event(Event::Publish { line, block, tail }, end))
}

/// `PUB subject [reply ]size\r\n` or `HPUB subject [reply ]header_size size\r\n` in capitals with single spaces, and
/// its length. `None` means that the general way must look at it, not that it is wrong.
#[inline]
fn canonical(input: &[u8], control_line_max: usize) -> Option<(PubLine<'_>, usize)> {
    let (has_header, start) = match input.first_chunk::<5>()? {
        [b'P', b'U', b'B', b' ', _] => (false, 4),
        b"HPUB " => (true, 5),
        _ => return None,
    };
    let subject_end = token_end(input, start)?;
    let subject = input.get(start..subject_end)?;
    let tail_at = subject_end + 1;
    let (reply, sizes) = match sizes_at(input, tail_at, has_header) {
        Some(sizes) => (None, sizes),
        None => {
            let reply_end = token_end(input, tail_at)?;
            (
                Some(input.get(tail_at..reply_end)?),
                sizes_at(input, reply_end + 1, has_header)?,
            )
        }
    };
    if sizes.end - start > control_line_max || sizes.header_len > sizes.size {
        return None;
    }
    let line = PubLine {
        subject,
        reply,
        has_header,
        header_len: sizes.header_len,
        size: sizes.size,
        header_text: sizes.header_text,
        size_text: sizes.size_text,
        // A header of no bytes is left out for receivers, so its size must not be shown.
        tail_at: if has_header && sizes.header_len == 0 {
            0
        } else {
            tail_at
        },
    };
    Some((line, sizes.end + 2))
}

struct Sizes<'a> {
    header_len: usize,
    header_text: &'a [u8],
    size: usize,
    size_text: &'a [u8],
    /// Where the line end starts.
    end: usize,
}

/// One or two sizes that end the line with CRLF.
#[inline]
fn sizes_at(input: &[u8], at: usize, two: bool) -> Option<Sizes<'_>> {
    let (mut size, mut end) = number_at(input, at)?;
    let mut size_text = input.get(at..end)?;
    let (mut header_len, mut header_text) = (0, &[][..]);
    if two {
        (header_len, header_text) = (size, size_text);
        if *input.get(end)? != b' ' {
            return None;
        }
        let second = end + 1;
        (size, end) = number_at(input, second)?;
        size_text = input.get(second..end)?;
    }
    if input.get(end..end + 2)? != b"\r\n" {
        return None;
    }
    Some(Sizes {
        header_len,
        header_text,
        size,
        size_text,
        end,
    })
}

/// A number of 1 to 9 digits and the index behind it.
#[inline]
fn number_at(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    let mut end = at;
    while let Some(digit) = input.get(end).map(|b| b.wrapping_sub(b'0')).filter(|d| *d <= 9) {
        if end - at == SIZE_DIGITS_MAX {
            return None;
        }
        value = value * 10 + usize::from(digit);
        end += 1;
    }
    (end > at).then_some((value, end))
}

/// The index of the space that ends the token at `at`; `None` if the token is empty or something else ends it.
#[inline]
fn token_end(input: &[u8], at: usize) -> Option<usize> {
    let mut end = at;
    // Eight bytes at a time: the lowest marked bit belongs to the first byte below 0x21. A borrow can mark bytes
    // above the first one wrongly, never one below it.
    while let Some(word) = input.get(end..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let blanks = word.wrapping_sub(0x2121_2121_2121_2121) & !word & 0x8080_8080_8080_8080;
        if blanks != 0 {
            end += (blanks.trailing_zeros() / 8) as usize;
            return (end > at && input.get(end) == Some(&b' ')).then_some(end);
        }
        end += 8;
    }
    while let Some(byte) = input.get(end) {
        if *byte <= b' ' {
            return (*byte == b' ' && end > at).then_some(end);
        }
        end += 1;
    }
    None
}

/// A verb of the client protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Pub,
    HeaderPub,
    Sub,
    Unsub,
    Connect,
    Ping,
    Pong,
    Ok,
    Err,
    Info,
}

impl Word {
    /// Whether a space or tab must follow.
    const fn needs_blank(self) -> bool {
        match self {
            Self::Pub | Self::HeaderPub | Self::Sub | Self::Unsub | Self::Err => true,
            Self::Connect | Self::Ping | Self::Pong | Self::Ok | Self::Info => false,
        }
    }
}

const WORDS: [(&[u8], Word); 10] = [
    (b"PUB", Word::Pub),
    (b"HPUB", Word::HeaderPub),
    (b"SUB", Word::Sub),
    (b"UNSUB", Word::Unsub),
    (b"PING", Word::Ping),
    (b"PONG", Word::Pong),
    (b"CONNECT", Word::Connect),
    (b"+OK", Word::Ok),
    (b"-ERR", Word::Err),
    (b"INFO", Word::Info),
];

enum VerbMatch {
    /// The verb and its length.
    Whole(Word, usize),
    /// The input could still become a verb.
    Partial,
    Unknown,
}

fn verb_of(input: &[u8]) -> VerbMatch {
    for (name, word) in WORDS {
        let n = name.len().min(input.len());
        let (Some(front), Some(seen)) = (name.get(..n), input.get(..n)) else {
            continue;
        };
        if !front.eq_ignore_ascii_case(seen) {
            continue;
        }
        if n < name.len() {
            return VerbMatch::Partial;
        }
        return match input.get(n) {
            None => VerbMatch::Partial,
            Some(b' ' | b'\t') => VerbMatch::Whole(word, n),
            Some(_) if word.needs_blank() => VerbMatch::Unknown,
            Some(_) => VerbMatch::Whole(word, n),
        };
    }
    VerbMatch::Unknown
}

/// Everything that is not a publish in canonical form.
#[inline(never)]
fn general<'a>(input: &'a [u8], limits: &Limits) -> Result<Parsed<'a>, ParseError> {
    let (word, verb_len) = match verb_of(input) {
        VerbMatch::Whole(word, len) => (word, len),
        VerbMatch::Partial => return Ok(Parsed::NeedLine),
        VerbMatch::Unknown => return Err(ParseError::unknown_operation(input)),
    };
    let after_verb = input.get(verb_len..).unwrap_or_default();
    let blanks = after_verb
        .iter()
        .take_while(|b| matches!(b, b' ' | b'\t'))
        .count();
    let Some(newline) = memchr(b'\n', after_verb) else {
        // A carriage return may be the last byte. Blanks before the arguments do not count, but must end some time.
        let unfinished = after_verb.len() - blanks > limits.control_line.saturating_add(1);
        let padded = blanks > limits.control_line;
        return if unfinished || padded {
            Err(ParseError::ControlLine)
        } else {
            Ok(Parsed::NeedLine)
        };
    };
    let args = after_verb.get(blanks..newline).unwrap_or_default();
    let args = args.strip_suffix(b"\r").unwrap_or(args);
    let len = verb_len + newline + 1;
    // Arguments that mean nothing count too, and so do blanks: a line must not be refused only when it comes in pieces.
    if args.len().max(blanks) > limits.control_line {
        return Err(ParseError::ControlLine);
    }
    let event = match word {
        Word::Pub => return publish(input, pub_args(args)?, len, limits),
        Word::HeaderPub => return publish(input, header_pub_args(args)?, len, limits),
        Word::Sub => sub_args(args)?,
        Word::Unsub => unsub_args(args)?,
        Word::Connect => Event::Connect(args),
        Word::Ping => Event::Ping,
        Word::Pong => Event::Pong,
        Word::Ok => Event::Ok,
        Word::Err => Event::Err(args),
        Word::Info => Event::Info(args),
    };
    Ok(Parsed::Event(event, len))
}

/// Most arguments of any verb, and one more to notice too many.
const ARGS_MAX: usize = 5;

/// The arguments, and how many there are (at most [`ARGS_MAX`] are counted).
fn split(args: &[u8]) -> ([&[u8]; ARGS_MAX], usize) {
    let mut out = [&[][..]; ARGS_MAX];
    let mut count = 0;
    let tokens = args
        .split(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n'))
        .filter(|t| !t.is_empty());
    for (slot, token) in out.iter_mut().zip(tokens) {
        *slot = token;
        count += 1;
    }
    (out, count)
}

fn size_of(text: &[u8]) -> Option<usize> {
    let (value, end) = number_at(text, 0)?;
    (end == text.len()).then_some(value)
}

fn pub_args(args: &[u8]) -> Result<PubLine<'_>, ParseError> {
    let ([subject, second, third, ..], count) = split(args);
    let (reply, size_text) = match count {
        2 => (None, second),
        3 => (Some(second), third),
        _ => return Err(ParseError::arguments(Verb::Pub, args)),
    };
    let size = size_of(size_text).ok_or_else(|| ParseError::Size {
        args: crate::Quoted(args).to_string(),
    })?;
    Ok(PubLine {
        subject,
        reply,
        has_header: false,
        header_len: 0,
        size,
        header_text: &[],
        size_text,
        tail_at: 0,
    })
}

fn header_pub_args(args: &[u8]) -> Result<PubLine<'_>, ParseError> {
    let quoted = || crate::Quoted(args).to_string();
    let ([subject, second, third, fourth, _], count) = split(args);
    let (reply, header_text, size_text) = match count {
        3 => (None, second, third),
        4 => (Some(second), third, fourth),
        _ => return Err(ParseError::arguments(Verb::HeaderPub, args)),
    };
    let header_len = size_of(header_text).ok_or_else(|| ParseError::HeaderSize { args: quoted() })?;
    let size = size_of(size_text).ok_or_else(|| ParseError::TotalSize { args: quoted() })?;
    if header_len > size {
        return Err(ParseError::HeaderLargerThanTotal { args: quoted() });
    }
    Ok(PubLine {
        subject,
        reply,
        has_header: true,
        header_len,
        size,
        header_text,
        size_text,
        tail_at: 0,
    })
}

fn sub_args(args: &[u8]) -> Result<Event<'_>, ParseError> {
    let ([subject, second, third, ..], count) = split(args);
    match count {
        2 => Ok(Event::Sub {
            subject,
            queue: None,
            sid: second,
        }),
        3 => Ok(Event::Sub {
            subject,
            queue: Some(second),
            sid: third,
        }),
        _ => Err(ParseError::arguments(Verb::Sub, args)),
    }
}

fn unsub_args(args: &[u8]) -> Result<Event<'_>, ParseError> {
    let ([sid, max, ..], count) = split(args);
    match count {
        1 => Ok(Event::Unsub { sid, max: 0 }),
        2 => Ok(Event::Unsub {
            sid,
            max: size_of(max).map_or(0, |n| n as u64),
        }),
        _ => Err(ParseError::arguments(Verb::Unsub, args)),
    }
}

#[cfg(test)]
mod tests;
