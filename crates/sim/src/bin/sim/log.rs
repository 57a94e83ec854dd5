//! The servers' log lines, on standard error, when somebody reads the trace.

use std::fmt::Write as _;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Starts to write log lines; without `wanted` there are none.
pub(crate) fn start(wanted: bool) {
    if wanted {
        // Fails only if it was started before, and then lines are written already.
        let _ = tracing::subscriber::set_global_default(Lines);
    }
}

struct Lines;

/// The message of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.is_event() && metadata.target().starts_with("tidelock");
        ours && (*metadata.level() <= tracing::Level::INFO || metadata.target().contains("::groups"))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        eprintln!(
            "{}{:5} {}",
            tidelock_sim::here(),
            event.metadata().level(),
            text.0
        );
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
