//! The configuration language: a file, the files it includes, and its variables, read into one tree.
//!
//! A line is `key value`, with `:`, `=` or nothing between them. Values are scalars, `[arrays]` and `{maps}`.
//! `$name` stands for the value of an earlier key of this map or one around it, or else of an environment variable,
//! whose text is read as a value. `include file` takes over the keys of another file. (NATS documentation,
//! "Configuration".)
//!
//! Accepted beyond nats-server: an integer directly before `]`, an absolute path to include, and a comment between
//! a key and its value's line. Nesting, includes and the number of values are bounded.

use std::sync::Arc;

use crate::Sources;
use crate::scan::{Scalar, Scanner, SyntaxError};
use crate::value::{Map, Node, Value};

/// Deepest nesting of arrays and maps, included files included.
const DEPTH_MAX: usize = 64;
/// Deepest nesting of includes and of environment variables that refer to others.
const NESTING_MAX: usize = 16;
/// Most files that a configuration may include; one that is included twice counts twice.
const INCLUDES_MAX: usize = 1_000;
/// Most values of a configuration, where a variable counts with everything in it.
const VALUES_MAX: usize = 1_000_000;

/// Reads a file and what it includes.
///
/// # Errors
/// The complete text of the error: `Parse error on line N: '…'` and the others of the language.
pub(crate) fn parse_file(path: &str, sources: &dyn Sources) -> Result<Map, String> {
    let data = sources
        .read(path)
        .map_err(|reason| format!("open {path}: {reason}"))?;
    parse_text(path, &data, sources)
}

/// Reads a text; `path` is what it is called in positions, and where includes are looked for.
pub(crate) fn parse_text(path: &str, data: &[u8], sources: &dyn Sources) -> Result<Map, String> {
    let mut shared = Shared {
        sources,
        values: 0,
        includes: 0,
        depth: 0,
        files: vec![path.to_owned()],
        variables: Vec::new(),
    };
    parse(Arc::from(path), data, &mut shared).map_err(|SyntaxError(text)| text)
}

/// What a file and its includes have in common.
struct Shared<'a> {
    sources: &'a dyn Sources,
    values: usize,
    includes: usize,
    depth: usize,
    /// Files being read, the outermost first.
    files: Vec<String>,
    /// Environment variables being read.
    variables: Vec<String>,
}

fn parse(file: Arc<str>, data: &[u8], shared: &mut Shared<'_>) -> Result<Map, SyntaxError> {
    let mut parser = Parser {
        scan: Scanner::new(data, file),
        scopes: vec![Map::default()],
        shared,
    };
    parser.top_level()?;
    Ok(parser.scopes.pop().unwrap_or_default())
}

/// Where a value stands, which decides what may follow it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Top,
    Braced,
    Map,
}

impl Place {
    const fn expected(self) -> &'static str {
        match self {
            Self::Top => "Expected a top-level value to end with a new line, comment or EOF",
            Self::Braced => "Expected a block-level value to end with a new line, comment or EOF",
            Self::Map => "Expected a map value terminator \",\" or a map terminator \"}\"",
        }
    }
}

struct Parser<'a, 'b> {
    scan: Scanner<'a>,
    /// The maps around the current place, the outermost first.
    scopes: Vec<Map>,
    shared: &'a mut Shared<'b>,
}

impl Parser<'_, '_> {
    fn top_level(&mut self) -> Result<(), SyntaxError> {
        self.scan.skip_space_and_comments();
        let mut place = if self.scan.eat(b'{') {
            Place::Braced
        } else {
            Place::Top
        };
        loop {
            self.scan.skip_space_and_comments();
            match self.scan.peek() {
                // A brace too few or too many at the end of the file does no harm, and nats-server does not mind it.
                None => return Ok(()),
                Some(b'}') => {
                    self.scan.bump();
                    place = Place::Top;
                }
                Some(_) => self.entry(place)?,
            }
        }
    }

    /// A key, its value and what ends them.
    fn entry(&mut self, place: Place) -> Result<(), SyntaxError> {
        let (key, quoted, at) = self.scan.key()?;
        let blank = matches!(self.scan.peek(), Some(b' ' | b'\t'));
        if !quoted && blank && key.eq_ignore_ascii_case("include") {
            self.include()?;
        } else {
            self.separator(place)?;
            let value = self.value()?;
            self.count(1)?;
            self.insert(key, Node { value, at });
        }
        self.end_of_value(place)
    }

    fn insert(&mut self, key: String, node: Node) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(key, node);
        }
    }

    /// What stands between a key and its value.
    fn separator(&mut self, place: Place) -> Result<(), SyntaxError> {
        self.scan.skip_space();
        let found = self.scan.eat(b':') || self.scan.eat(b'=');
        self.scan.skip_blanks();
        match self.scan.peek() {
            None if place == Place::Map && !found => {
                Err(self.scan.error("Unexpected EOF processing map key."))
            }
            None if !found => Err(SyntaxError(format!(
                "config is invalid ({})",
                self.scan.position()
            ))),
            _ => Ok(()),
        }
    }

    fn end_of_value(&mut self, place: Place) -> Result<(), SyntaxError> {
        self.scan.skip_blanks();
        match self.scan.peek() {
            Some(b',' | b';') => self.scan.bump(),
            // The brace belongs to the map around the value.
            Some(b'\n' | b'}') => {}
            None if place == Place::Top => {}
            _ if self.scan.at_comment() => {}
            _ => return Err(self.scan.error_but_got(place.expected())),
        }
        Ok(())
    }

    fn value(&mut self) -> Result<Value, SyntaxError> {
        match self.scan.peek() {
            Some(b'[') => self.nested(Self::array),
            Some(b'{') => self.nested(Self::map),
            _ => match self.scan.scalar()? {
                Scalar::Value(value) => Ok(value),
                Scalar::Variable(name) => self.variable(&name),
            },
        }
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Value, SyntaxError>,
    ) -> Result<Value, SyntaxError> {
        if self.shared.depth >= DEPTH_MAX {
            return Err(self.scan.error("Too many arrays and maps within one another."));
        }
        self.shared.depth += 1;
        let value = read(self);
        self.shared.depth -= 1;
        value
    }

    fn array(&mut self) -> Result<Value, SyntaxError> {
        const EXPECTED: &str = "Expected an array value terminator \",\" or an array terminator \"]\"";
        self.scan.bump();
        let mut nodes = Vec::new();
        loop {
            self.scan.skip_space_and_comments();
            match self.scan.peek() {
                None => return Err(self.scan.error_but_got(EXPECTED)),
                Some(b']') => {
                    self.scan.bump();
                    return Ok(Value::Array(nodes));
                }
                Some(b',') => return Err(self.scan.error("Unexpected array value terminator ','.")),
                Some(_) => {}
            }
            let opening = matches!(self.scan.peek(), Some(b'"' | b'\'' | b'{' | b'['));
            let mut at = self.scan.position();
            at.column += u32::from(opening);
            let value = self.value()?;
            self.count(1)?;
            nodes.push(Node { value, at });
            self.scan.skip_blanks();
            match self.scan.peek() {
                Some(b',') => self.scan.bump(),
                Some(b'\n' | b']') => {}
                _ if self.scan.at_comment() => {}
                _ => return Err(self.scan.error_but_got(EXPECTED)),
            }
        }
    }

    fn map(&mut self) -> Result<Value, SyntaxError> {
        self.scan.bump();
        self.scopes.push(Map::default());
        loop {
            self.scan.skip_space_and_comments();
            match self.scan.peek() {
                None => return Err(self.scan.error("Unexpected EOF processing map.")),
                Some(b'}') => {
                    self.scan.bump();
                    return Ok(Value::Map(self.scopes.pop().unwrap_or_default()));
                }
                Some(_) => self.entry(Place::Map)?,
            }
        }
    }

    /// The value of a variable: of the innermost map that has it, or else of the environment.
    fn variable(&mut self, name: &str) -> Result<Value, SyntaxError> {
        let known = self
            .scopes
            .iter_mut()
            .rev()
            .find_map(|scope| scope.use_variable(name));
        if let Some(node) = known {
            let value = node.value.clone();
            self.count(value.count())?;
            return Ok(value);
        }
        let line = self.scan.line();
        let Some(written) = self.shared.sources.env(name).filter(|_| !name.is_empty()) else {
            return Err(SyntaxError(format!(
                "variable reference for '{name}' on line {line} can not be found"
            )));
        };
        self.environment(name, &written).map_err(|SyntaxError(reason)| {
            SyntaxError(format!(
                "variable reference for '{name}' on line {line} could not be parsed: {reason}"
            ))
        })
    }

    fn environment(&mut self, name: &str, written: &str) -> Result<Value, SyntaxError> {
        let cycle = self.shared.variables.iter().any(|known| known == name);
        if cycle || self.shared.variables.len() >= NESTING_MAX {
            return Err(SyntaxError(format!("variable reference cycle for '{name}'")));
        }
        self.shared.variables.push(name.to_owned());
        let text = format!("value={written}");
        let parsed = parse(Arc::clone(self.scan.file()), text.as_bytes(), self.shared);
        self.shared.variables.pop();
        let value = parsed?.use_variable("value").map(|node| node.value.clone());
        Ok(value.unwrap_or(Value::Text(String::new())))
    }

    fn include(&mut self) -> Result<(), SyntaxError> {
        self.scan.skip_blanks();
        let path = self.scan.include_path()?;
        let included = self.included(&path).map_err(|SyntaxError(reason)| {
            SyntaxError(format!("error parsing include file '{path}', {reason}"))
        })?;
        if let Some(scope) = self.scopes.last_mut() {
            scope.merge(included);
        }
        Ok(())
    }

    fn included(&mut self, path: &str) -> Result<Map, SyntaxError> {
        let full = beside(self.scan.file(), path);
        let cycle = self.shared.files.contains(&full);
        if cycle || self.shared.files.len() >= NESTING_MAX {
            return Err(SyntaxError(format!("include cycle for '{full}'")));
        }
        self.shared.includes += 1;
        if self.shared.includes > INCLUDES_MAX {
            return Err(SyntaxError("too many includes".to_owned()));
        }
        let data = self
            .shared
            .sources
            .read(&full)
            .map_err(|reason| SyntaxError(format!("open {full}: {reason}")))?;
        self.shared.files.push(full.clone());
        let parsed = parse(full.into(), &data, self.shared);
        self.shared.files.pop();
        parsed
    }

    /// Counts values, so that variables of variables cannot fill the memory.
    fn count(&mut self, values: usize) -> Result<(), SyntaxError> {
        self.shared.values += values;
        if self.shared.values > VALUES_MAX {
            return Err(self.scan.error("Too many values."));
        }
        Ok(())
    }
}

/// The path of a file named relative to another file.
fn beside(file: &str, path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    match file.rsplit_once('/') {
        Some((directory, _)) if !path.starts_with('/') => format!("{directory}/{path}"),
        _ => path.to_owned(),
    }
}
