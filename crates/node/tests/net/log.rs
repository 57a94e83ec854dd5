//! What the server logs while something happens. Tests run side by side, each on a thread of its own with its nodes.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    /// The lines of this thread, while somebody wants them.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Lines;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("a string takes all");
        }
    }
}

impl Subscriber for Lines {
    /// What the server writes down, at all levels.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidelock")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                let mut message = Message(format!("{} ", event.metadata().level()));
                event.record(&mut message);
                lines.push(message.0);
            }
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Listens to the log from now on, before anything is logged: what was logged unheard once may stay so.
pub(crate) fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Lines).expect("nobody else listens"));
}

/// The lines that are logged during `work`, each after its level.
pub(crate) fn said(work: impl FnOnce()) -> Vec<String> {
    LINES.set(Some(Vec::new()));
    work();
    LINES.take().unwrap_or_default()
}
