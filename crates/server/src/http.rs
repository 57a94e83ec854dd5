//! The monitoring port: HTTP in a thread of its own. Each request becomes a [`Query`] for the first worker; what the
//! worker answers goes back as it is. Nothing is decided here but which path is an endpoint.

use crate::shell::{Input, Mailbox};
use crate::{Fatal, bind, text_of};
use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, Uri, header};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tidelock_conf::MonitorOptions;
use tidelock_node::{Answer, Query, QueryId};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

/// A worker that takes longer for an answer is in trouble, and whoever asked should know.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Requests that may wait for the worker at a time; those beyond are refused.
const WAITING_MAX: usize = 256;

/// A monitoring port that is open and not served yet.
pub(crate) struct Monitor {
    listener: TcpListener,
    base_path: Arc<str>,
}

impl Monitor {
    /// Opens the port.
    ///
    /// # Errors
    /// [`Fatal`] with nats-server's text.
    pub(crate) fn open(options: &MonitorOptions) -> Result<Self> {
        let at = &options.listen;
        let failed = |reason: String| {
            Fatal(format!(
                "Can't start monitoring: can't listen to the monitor port: {reason}"
            ))
        };
        let address = (at.host.as_str(), at.port)
            .to_socket_addrs()
            .map_err(|e| failed(format!("listen tcp: lookup {}: {e}", at.host)))?
            .next()
            .ok_or_else(|| failed(format!("listen tcp: lookup {}: no such host", at.host)))?;
        let listener =
            bind(address).map_err(|e| failed(format!("listen tcp {at}: bind: {}", text_of(&e))))?;
        Ok(Self {
            listener,
            base_path: options.base_path.trim_end_matches('/').into(),
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves in a thread of its own, until the workers are gone and with them the other end of `answers`.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be made.
    pub(crate) fn serve(self, worker: Mailbox, answers: UnboundedReceiver<(QueryId, Answer)>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let desk = Arc::new(Desk {
            worker,
            base_path: self.base_path,
            waiting: Mutex::default(),
            last: AtomicU64::new(0),
        });
        let listener = self.listener;
        let work = move || {
            runtime.block_on(async move {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => {
                        let router = Router::new().fallback(handle).with_state(Arc::clone(&desk));
                        tokio::spawn(async move { axum::serve(listener, router).await });
                        desk.deal_out(answers).await;
                    }
                    Err(e) => tracing::error!("The monitoring port cannot be served: {e}"),
                }
            });
        };
        thread::Builder::new().name("monitor".to_owned()).spawn(work)?;
        Ok(())
    }
}

/// Where requests wait for their answers.
struct Desk {
    worker: Mailbox,
    /// Prefix of all paths, without a slash at its end.
    base_path: Arc<str>,
    waiting: Mutex<HashMap<QueryId, oneshot::Sender<Answer>>>,
    last: AtomicU64,
}

impl Desk {
    /// Gives answers to those who wait for them.
    async fn deal_out(&self, mut answers: UnboundedReceiver<(QueryId, Answer)>) {
        while let Some((id, answer)) = answers.recv().await {
            let waiter = self.waiting().remove(&id);
            if let Some(waiter) = waiter {
                // Whoever asked may have gone meanwhile.
                let _ = waiter.send(answer);
            }
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<QueryId, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, query: Query) -> Option<Answer> {
        let id = QueryId(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.len() >= WAITING_MAX {
                return None;
            }
            waiting.insert(id, sender);
        }
        self.worker.send(Input::Query(id, query));
        let answer = tokio::time::timeout(ANSWER_MAX, receiver).await;
        self.waiting().remove(&id);
        answer.ok()?.ok()
    }

    /// The endpoint that a path means: empty for the page that links the others.
    fn endpoint<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(&*self.base_path)?;
        match rest.strip_prefix('/') {
            Some("") if !self.base_path.is_empty() => None,
            Some(endpoint) if !endpoint.contains('/') => Some(endpoint),
            Some(_) => None,
            None => rest.is_empty().then_some(rest),
        }
    }
}

async fn handle(State(desk): State<Arc<Desk>>, uri: Uri) -> Response<Body> {
    let Some(endpoint) = desk.endpoint(uri.path()) else {
        return not_found();
    };
    let query = Query {
        endpoint: endpoint.to_owned(),
        options: options(uri.query().unwrap_or_default()),
    };
    match desk.ask(query).await {
        Some(answer) => response(answer),
        None => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is too busy to answer\n",
        ),
    }
}

fn response(answer: Answer) -> Response<Body> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(answer.content_type),
    );
    if answer.content_type.starts_with("application/json") {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    response
}

fn not_found() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// The options of a query string, decoded; a pair that cannot be decoded is left out.
fn options(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name)?, decode(value)?))
        })
        .collect()
}

/// Percent-decoding of a part of a query string, where `+` is a blank.
fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &str) -> Vec<(String, String)> {
        options(query)
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn query_strings_are_decoded() {
        assert_eq!(
            pairs("subs=1&acc=A%20b+c"),
            [pair("subs", "1"), pair("acc", "A b c")]
        );
        assert_eq!(pairs("test=foo.%3e&&x"), [pair("test", "foo.>"), pair("x", "")]);
        assert_eq!(pairs("bad=%zz&cut=%2&ok=1"), [pair("ok", "1")]);
        assert_eq!(pairs(""), []);
    }
}
