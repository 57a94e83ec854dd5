//! The log: lines of nats-server's form, to standard error or a file.
//!
//! `[PID] 2026/11/29 10:58:54.480598 [INF] text key=value`. Scripts wait for such lines, so the form is fixed. Library
//! crates log through `tracing`; this is the subscriber that writes their events down. Spans are ignored: whoever logs
//! puts the prefix of a connection into the text.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use jiff::ZonedDateTime;
use jiff::tz::TimeZone;
use tidelock_conf::LogOptions;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Events of this target that are errors end the process; they are logged as `[FTL]`.
pub(crate) const FATAL: &str = "tidelock::fatal";

/// Libraries log under their crate's name; only ours are written down.
const OURS: &str = "tidelock";

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts logging, for the life of the process.
///
/// # Errors
/// The log file cannot be opened, or logging was started before.
pub(crate) fn start(options: &LogOptions) -> anyhow::Result<()> {
    let logger = Logger::new(options)?;
    if LOGGER.set(logger).is_err() {
        anyhow::bail!("logging was started before");
    }
    tracing::subscriber::set_global_default(Forward)?;
    Ok(())
}

/// Opens the log file again after it was moved away. Says so in the log, and whether there is a file.
pub(crate) fn reopen() -> bool {
    let Some(logger) = LOGGER.get() else { return false };
    match logger.reopen() {
        Ok(true) => {
            tracing::info!("File log re-opened");
            true
        }
        Ok(false) => {
            tracing::info!("File log re-open ignored, not a file logger");
            false
        }
        Err(error) => {
            tracing::error!("File log can not be re-opened: {error}");
            false
        }
    }
}

/// The subscriber that is registered; the logger itself lives in [`LOGGER`].
struct Forward;

impl Subscriber for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with(OURS)
            && LOGGER
                .get()
                .is_some_and(|logger| logger.levels.contain(*metadata.level()))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        LOGGER.get().map(|logger| logger.levels.most_verbose())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if let Some(logger) = LOGGER.get() {
            logger.log(event);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Debug and trace lines are asked for one by one; the others are always written.
#[derive(Clone, Copy, Debug)]
struct Levels {
    debug: bool,
    trace: bool,
}

impl Levels {
    const fn contain(self, level: Level) -> bool {
        match level {
            Level::TRACE => self.trace,
            Level::DEBUG => self.debug,
            _ => true,
        }
    }

    const fn most_verbose(self) -> LevelFilter {
        if self.trace {
            LevelFilter::TRACE
        } else if self.debug {
            LevelFilter::DEBUG
        } else {
            LevelFilter::INFO
        }
    }
}

struct Logger {
    levels: Levels,
    form: Form,
    sink: Mutex<Sink>,
}

impl Logger {
    fn new(options: &LogOptions) -> anyhow::Result<Self> {
        let levels = Levels {
            debug: options.debug,
            trace: options.trace,
        };
        let sink = match &options.file {
            Some(path) => Sink::File(LogFile::open(path.into(), options.size_limit, options.max_files)?),
            None => Sink::Stderr,
        };
        let form = Form {
            pid: std::process::id(),
            zone: options.time.then(|| {
                if options.utc {
                    TimeZone::UTC
                } else {
                    TimeZone::system()
                }
            }),
            colours: options.file.is_none() && io::stderr().is_terminal(),
        };
        Ok(Self {
            levels,
            form,
            sink: Mutex::new(sink),
        })
    }

    fn log(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let label = Label::of(*metadata.level(), metadata.target());
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = self.form.line(label, &fields.message, &fields.others);
        // A panic while the lock was held leaves at worst a line cut short.
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.write(line.as_bytes(), &self.form);
    }

    fn reopen(&self) -> io::Result<bool> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *sink {
            Sink::Stderr => Ok(false),
            Sink::File(file) => file.reopen().map(|()| true),
        }
    }
}

/// The letters of a level, and the colour they have on a terminal (SGR codes).
#[derive(Clone, Copy)]
struct Label {
    letters: &'static str,
    colour: &'static str,
}

impl Label {
    fn of(level: Level, target: &str) -> Self {
        let (letters, colour) = match level {
            Level::ERROR if target == FATAL => ("FTL", "31"),
            Level::ERROR => ("ERR", "31"),
            Level::WARN => ("WRN", "0;93"),
            Level::INFO => ("INF", "32"),
            Level::DEBUG => ("DBG", "36"),
            Level::TRACE => ("TRC", "33"),
        };
        Self { letters, colour }
    }
}

/// What the lines look like.
struct Form {
    pid: u32,
    /// The zone of the times; `None` for lines without one.
    zone: Option<TimeZone>,
    colours: bool,
}

impl Form {
    fn line(&self, label: Label, message: &str, fields: &str) -> String {
        let mut line = String::with_capacity(64 + message.len() + fields.len());
        let _ = write!(line, "[{}] ", self.pid);
        if let Some(now) = self.now() {
            let _ = write!(line, "{} ", now.strftime("%Y/%m/%d %H:%M:%S%.6f"));
        }
        let _ = if self.colours {
            write!(line, "[\x1b[{}m{}\x1b[0m] ", label.colour, label.letters)
        } else {
            write!(line, "[{}] ", label.letters)
        };
        line.push_str(message);
        line.push_str(fields);
        line.push('\n');
        line
    }

    fn now(&self) -> Option<ZonedDateTime> {
        self.zone
            .as_ref()
            .map(|zone| jiff::Timestamp::now().to_zoned_datetime(zone.clone()))
    }
}

/// The text of an event, and its other fields as ` key=value`.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.others, " {}={value:?}", field.name())
        };
    }
}

enum Sink {
    Stderr,
    File(LogFile),
}

impl Sink {
    /// Writes a line. There is nobody left to tell if that fails.
    fn write(&mut self, line: &[u8], form: &Form) {
        let _ = match self {
            Self::Stderr => io::stderr().lock().write_all(line),
            Self::File(file) => file.write(line, form),
        };
    }
}

/// A log file that is moved aside when it is full.
struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    /// 0: no limit.
    size_limit: u64,
    /// Files kept, the current one included; 0: all.
    max_files: u32,
}

impl LogFile {
    fn open(path: PathBuf, size_limit: u64, max_files: u32) -> anyhow::Result<Self> {
        let file =
            append_to(&path).map_err(|error| anyhow::anyhow!("error opening log file {path:?}: {error}"))?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            size,
            size_limit,
            max_files,
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = append_to(&self.path)?;
        self.size = self.file.metadata()?.len();
        Ok(())
    }

    fn write(&mut self, line: &[u8], form: &Form) -> io::Result<()> {
        self.file.write_all(line)?;
        self.size += line.len() as u64;
        if self.size_limit > 0 && self.size > self.size_limit {
            self.rotate(form)?;
        }
        Ok(())
    }

    /// Moves the file to `<name>.YYYY.MM.DD.hh.mm.ss.nnnnnnnnn` and begins another.
    fn rotate(&mut self, form: &Form) -> io::Result<()> {
        let zone = form.zone.clone().unwrap_or_else(TimeZone::system);
        let now = jiff::Timestamp::now().to_zoned_datetime(zone);
        let backup = backup_name(&self.path, &now.strftime("%Y.%m.%d.%H.%M.%S.%9f").to_string());
        std::fs::rename(&self.path, &backup)?;
        self.reopen()?;
        let shown = backup.display().to_string();
        let label = Label::of(Level::INFO, OURS);
        let line = form.line(label, &format!("Rotated log, backup saved as {shown:?}"), "");
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> io::Result<()> {
        if self.max_files == 0 {
            return Ok(());
        }
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(name) = self.path.file_name() else {
            return Ok(());
        };
        let prefix = format!("{}.", name.to_string_lossy());
        let mut backups: Vec<PathBuf> = std::fs::read_dir(directory)?
            .filter_map(Result::ok)
            .filter(|entry| is_backup(&entry.file_name().to_string_lossy(), &prefix))
            .map(|entry| entry.path())
            .collect();
        // The names are times, so their order is the order in which they were written.
        backups.sort();
        let kept = self.max_files as usize - 1;
        let excess = backups.len().saturating_sub(kept);
        backups.iter().take(excess).try_for_each(std::fs::remove_file)
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(path)
}

fn backup_name(path: &Path, stamp: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(stamp);
    name.into()
}

/// Whether a file is one that was moved aside: the log's name and seven numbers.
fn is_backup(name: &str, prefix: &str) -> bool {
    let numbers = |stamp: &str| {
        let parts: Vec<_> = stamp.split('.').collect();
        parts.len() == 7
            && parts
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    name.strip_prefix(prefix).is_some_and(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(zone: Option<TimeZone>, colours: bool) -> Form {
        Form {
            pid: 42,
            zone,
            colours,
        }
    }

    #[test]
    fn lines_have_nats_server_s_form() {
        let label = Label::of(Level::INFO, "tidelock_server");
        assert_eq!(
            form(None, false).line(label, "Server is ready", ""),
            "[42] [INF] Server is ready\n"
        );
        assert_eq!(
            form(None, true).line(label, "a", " k=1"),
            "[42] [\x1b[32mINF\x1b[0m] a k=1\n"
        );
        let line = form(Some(TimeZone::UTC), false).line(label, "x", "");
        let shape: String = line
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(shape, "[00] 0000/00/00 00:00:00.000000 [INF] x\n");
    }

    #[test]
    fn fatal_errors_have_their_own_letters() {
        assert_eq!(Label::of(Level::ERROR, FATAL).letters, "FTL");
        assert_eq!(Label::of(Level::ERROR, "tidelock_node").letters, "ERR");
    }

    #[test]
    fn trace_does_not_turn_debug_on() {
        let levels = Levels {
            debug: false,
            trace: true,
        };
        assert!(levels.contain(Level::TRACE));
        assert!(!levels.contain(Level::DEBUG));
        assert!(levels.contain(Level::INFO));
        assert_eq!(levels.most_verbose(), LevelFilter::TRACE);
    }

    #[test]
    fn a_full_file_is_moved_aside_and_old_ones_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nats.log");
        let form = form(None, false);
        let mut file = LogFile::open(path.clone(), 100, 3).unwrap();
        std::fs::write(directory.path().join("nats.log.old"), b"not ours").unwrap();
        for _ in 0..6 {
            file.write(&[b'x'; 101], &form).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(
            names.iter().filter(|name| is_backup(name, "nats.log.")).count(),
            2
        );
        let current = std::fs::read_to_string(&path).unwrap();
        assert!(
            current.starts_with("[42] [INF] Rotated log, backup saved as"),
            "{current}"
        );
    }

    #[test]
    fn a_file_that_was_moved_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nats.log");
        let options = LogOptions {
            file: Some(path.to_str().unwrap().to_owned()),
            ..LogOptions::default()
        };
        let logger = Logger::new(&options).unwrap();
        std::fs::rename(&path, directory.path().join("moved")).unwrap();
        assert!(logger.reopen().unwrap());
        logger.sink.lock().unwrap().write(b"after\n", &logger.form);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after\n");
        let stderr = Logger::new(&LogOptions::default()).unwrap();
        assert!(!stderr.reopen().unwrap());
    }
}
