//! Functions of a transform's destination: `$n` and `{{name(arguments)}}`.

use super::{Source, TransformError};

/// What a token of the destination computes. Places count the tokens of the subject from 0; sizes are in bytes, 0
/// where nothing is to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Token(usize),
    /// Hash of some tokens modulo `count`; 0 gives 0.
    Partition {
        count: u32,
        of: Box<[usize]>,
    },
    /// Hash of the whole subject modulo the count.
    PartitionAll(u32),
    Random(u32),
    Split {
        at: usize,
        delimiter: Box<[u8]>,
    },
    SplitFrom {
        side: Side,
        at: usize,
        size: usize,
    },
    Slice {
        side: Side,
        at: usize,
        size: usize,
    },
    Part {
        side: Side,
        at: usize,
        size: usize,
    },
}

/// The side from which a token is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Wildcard,
    Partition,
    Random,
    Split,
    SplitFrom(Side),
    Slice(Side),
    Part(Side),
}

/// White space inside of a function's braces.
const SPACE: [char; 5] = [' ', '\t', '\n', '\r', '\x0c'];

impl Name {
    /// The initials of the words of a name may be capitals; nothing else may differ.
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "wildcard" | "Wildcard" => Self::Wildcard,
            "partition" | "Partition" => Self::Partition,
            "random" | "Random" => Self::Random,
            "split" | "Split" => Self::Split,
            "left" | "Left" => Self::Part(Side::Left),
            "right" | "Right" => Self::Part(Side::Right),
            _ => Self::parse_words(text)?,
        })
    }

    fn parse_words(text: &str) -> Option<Self> {
        let initial = |word: &'static str, text| strip_word(text, word);
        let (make, rest): (fn(Side) -> Self, &str) = match initial("split", text) {
            Some(rest) => (Self::SplitFrom, rest),
            None => (Self::Slice, initial("slice", text)?),
        };
        let rest = initial("from", rest)?;
        let side = if initial("left", rest) == Some("") {
            Side::Left
        } else if initial("right", rest) == Some("") {
            Side::Right
        } else {
            return None;
        };
        Some(make(side))
    }
}

/// What follows a word at the start of the text, if it starts with the word, whose first letter may be a capital.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(word.len())?;
    let same = head.eq_ignore_ascii_case(word) && head.get(1..) == word.get(1..);
    same.then_some(tail)
}

/// Whether the token has the form of a function; `{{}}` is a plain token.
pub(super) fn is_call(token: &str) -> bool {
    token.len() > 4 && token.starts_with("{{") && token.ends_with("}}")
}

/// Takes a token for which [`is_call`] holds apart.
pub(super) fn name_and_arguments(token: &str) -> Result<(Name, &str), TransformError> {
    let unknown = || TransformError::UnknownFunction(token.to_owned());
    let call = token
        .get(2..token.len() - 2)
        .unwrap_or_default()
        .trim_matches(SPACE);
    let (name, rest) = call.split_once('(').ok_or_else(unknown)?;
    let arguments = rest.strip_suffix(')').ok_or_else(unknown)?;
    let name = Name::parse(name.trim_matches(SPACE)).ok_or_else(unknown)?;
    Ok((name, arguments))
}

/// The arguments of a call, cut at commas. White space after a comma belongs to it.
fn split_arguments(arguments: &str) -> Vec<&str> {
    let mut parts = arguments.split(',');
    let mut all: Vec<&str> = parts.next().into_iter().collect();
    all.extend(parts.map(|part| part.trim_start_matches(SPACE)));
    all
}

/// The function that a token stands for, or `None` for a plain token.
pub(super) fn parse_function(source: &Source<'_>, token: &str) -> Result<Option<Function>, TransformError> {
    if let Some(number) = token.strip_prefix('$') {
        // A token that starts with `$` and is no number is a plain one, such as `$JS`.
        return match number.parse::<i64>() {
            Ok(index) => wildcard(source, token, index).map(Some),
            Err(_) => Ok(None),
        };
    }
    if !is_call(token) {
        return Ok(None);
    }
    let (name, arguments) = name_and_arguments(token)?;
    let call = Call {
        source,
        token,
        arguments: split_arguments(arguments),
    };
    match name {
        Name::Wildcard => call.wildcard(arguments),
        Name::Partition => call.partition(),
        Name::Random => call.random(),
        Name::Split => call.split(),
        Name::SplitFrom(side) => call.sized(|at, size| Function::SplitFrom { side, at, size }),
        Name::Slice(side) => call.sized(|at, size| Function::Slice { side, at, size }),
        Name::Part(side) => call.sized(|at, size| Function::Part { side, at, size }),
    }
    .map(Some)
}

fn wildcard(source: &Source<'_>, token: &str, index: i64) -> Result<Function, TransformError> {
    if source.is_literal() {
        return Err(no_wildcards(token));
    }
    source.place(token, index).map(Function::Token)
}

fn no_wildcards(token: &str) -> TransformError {
    TransformError::IndexOutOfRange {
        token: token.to_owned(),
        index: None,
    }
}

/// One call with its arguments, while it is checked.
struct Call<'a> {
    source: &'a Source<'a>,
    token: &'a str,
    arguments: Vec<&'a str>,
}

impl Call<'_> {
    fn invalid(&self) -> TransformError {
        TransformError::InvalidArgument(self.token.to_owned())
    }

    fn not_enough(&self) -> TransformError {
        TransformError::NotEnoughArguments(self.token.to_owned())
    }

    fn argument(&self, at: usize) -> Result<&str, TransformError> {
        self.arguments.get(at).copied().ok_or_else(|| self.not_enough())
    }

    fn number(&self, at: usize) -> Result<i64, TransformError> {
        self.argument(at)?
            .trim_matches(' ')
            .parse()
            .map_err(|_| self.invalid())
    }

    /// A number that must not be above the largest 32-bit one; far below zero it wraps, as in nats-server.
    fn small(&self, at: usize) -> Result<i32, TransformError> {
        let number = self.number(at)?;
        if number > i64::from(i32::MAX) {
            return Err(self.invalid());
        }
        Ok(i32::try_from(number).unwrap_or(i32::MIN))
    }

    /// Exactly two arguments.
    fn two(&self) -> Result<(), TransformError> {
        match self.arguments.len() {
            0 | 1 => Err(self.not_enough()),
            2 => Ok(()),
            _ => Err(TransformError::TooManyArguments(self.token.to_owned())),
        }
    }

    fn wildcard(&self, arguments: &str) -> Result<Function, TransformError> {
        if arguments.is_empty() {
            return Err(self.not_enough());
        }
        if self.arguments.len() > 1 {
            return Err(TransformError::TooManyArguments(self.token.to_owned()));
        }
        wildcard(self.source, self.token, self.number(0)?)
    }

    fn partition(&self) -> Result<Function, TransformError> {
        // A negative count is taken as the unsigned number of the same bits.
        let count = self.small(0)?.cast_unsigned();
        let indexes = (1..self.arguments.len())
            .map(|at| self.number(at))
            .collect::<Result<Vec<_>, _>>()?;
        if indexes.is_empty() || self.source.is_literal() {
            return Ok(Function::PartitionAll(count));
        }
        let of = indexes
            .into_iter()
            .map(|index| self.source.place(self.token, index))
            .collect::<Result<_, _>>()?;
        Ok(Function::Partition { count, of })
    }

    fn random(&self) -> Result<Function, TransformError> {
        if self.arguments.len() != 1 {
            // Said of too many as well; the text is nats-server's.
            return Err(self.not_enough());
        }
        Ok(Function::Random(self.small(0)?.unsigned_abs()))
    }

    fn split(&self) -> Result<Function, TransformError> {
        self.two()?;
        let index = self.number(0)?;
        let delimiter = self.argument(1)?;
        if delimiter.contains([' ', '.']) {
            return Err(self.invalid());
        }
        let delimiter = delimiter.as_bytes().into();
        Ok(Function::Split {
            at: self.place(index)?,
            delimiter,
        })
    }

    fn sized(&self, make: impl FnOnce(usize, usize) -> Function) -> Result<Function, TransformError> {
        self.two()?;
        let index = self.number(0)?;
        let size = usize::try_from(self.small(1)?).unwrap_or(0);
        Ok(make(self.place(index)?, size))
    }

    fn place(&self, index: i64) -> Result<usize, TransformError> {
        if self.source.is_literal() {
            return Err(no_wildcards(self.token));
        }
        self.source.place(self.token, index)
    }
}
