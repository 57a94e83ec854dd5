//! A server with real sockets: the monitoring port, the system account, lame duck mode and the stop.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tidelock_conf::{Sources, load, parse_flags};
use tidelock_server::{Control, Server};

const ACCOUNTS: &str = r"
    accounts {
        SYS { users: [{ user: sys, password: s }] }
        A { users: [
            { user: a, password: a }
            { user: r, password: r, permissions: { publish: { deny: nope }, subscribe: '>' } }
        ] }
        B { users: [{ user: b, password: b }] }
    }
    system_account: SYS
";

/// One file, whatever its name.
struct Text(String);

impl Sources for Text {
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Ok(self.0.clone().into_bytes())
    }

    fn env(&self, _: &str) -> Option<String> {
        None
    }
}

/// A server that stops with the test.
struct Running {
    control: Control,
    server: Option<Server>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(more: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let text = format!(
            "listen: '127.0.0.1:-1', http: '127.0.0.1:-1', server_name: one\n\
             jetstream {{ store_dir: '{}', max_mem: 64MB, max_file: 1GB }}\n{more}",
            folder.path().display()
        );
        let words = ["-c", "test.conf"].map(str::to_owned);
        let (flags, _) = parse_flags(&words)?;
        let server = Server::start(load(&flags, &Text(text))?.options)?;
        let control = server.control();
        Ok(Self {
            control,
            server: Some(server),
            _folder: folder,
        })
    }

    /// Status, content type and body of an endpoint.
    fn http(&self, path: &str) -> Result<(u16, String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control.addresses().http_port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )?;
        let mut all = String::new();
        stream.read_to_string(&mut all)?;
        let (head, body) = all.split_once("\r\n\r\n").context("no end of the head")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        let kind = head
            .lines()
            .find_map(|line| line.strip_prefix("content-type: "))
            .unwrap_or_default();
        Ok((status, kind.to_owned(), body.to_owned()))
    }

    fn json(&self, path: &str) -> Result<Value> {
        let (status, kind, body) = self.http(path)?;
        assert_eq!(
            (status, kind.as_str()),
            (200, "application/json"),
            "{path}: {body}"
        );
        Ok(serde_json::from_str(&body)?)
    }

    fn refused(&self, path: &str) -> Result<(u16, String)> {
        let (status, _, body) = self.http(path)?;
        Ok((status, body))
    }

    fn client(&self, user: &str, password: &str) -> Result<Client> {
        Client::connect(self.control.addresses().listen_port, user, password)
    }

    /// Stops the server and waits for its end.
    fn stop(mut self) {
        self.control.stop();
        self.server.take().into_iter().for_each(Server::wait);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.stop();
        self.server.take().into_iter().for_each(Server::wait);
    }
}

/// A client of few words.
struct Client {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16, user: &str, password: &str) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut client = Self { stream, lines };
        let connect = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1,
            "user": user, "pass": password, "name": "tester", "lang": "rust", "version": "1"
        });
        write!(client.stream, "CONNECT {connect}\r\nPING\r\n")?;
        client.line("PONG")?;
        client.line("INFO")?;
        Ok(client)
    }

    fn next(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line)?;
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }

    /// The next line that begins like this.
    fn line(&mut self, start: &str) -> Result<String> {
        while let Some(line) = self.next()? {
            if line.starts_with(start) {
                return Ok(line);
            }
        }
        bail!("closed before {start}");
    }

    fn subscribe(&mut self, subject: &str) -> Result<()> {
        write!(self.stream, "SUB {subject} 1\r\nPING\r\n")?;
        self.line("PONG").map(|_| ())
    }

    /// Subject and body of the next message, without its header.
    fn message(&mut self) -> Result<(String, String)> {
        let line = loop {
            let line = self.next()?.context("closed")?;
            if line.starts_with("MSG ") || line.starts_with("HMSG ") {
                break line;
            }
        };
        let words: Vec<&str> = line.split(' ').collect();
        let size = |at: usize| {
            words
                .iter()
                .rev()
                .nth(at)
                .context("too few words")?
                .parse::<usize>()
                .context("size")
        };
        let (total, head) = (size(0)?, if line.starts_with('H') { size(1)? } else { 0 });
        let mut body = vec![0; total + 2];
        self.lines.read_exact(&mut body)?;
        let body = body.get(head..total).unwrap_or_default();
        Ok((
            words.get(1).unwrap_or(&"").to_string(),
            String::from_utf8(body.to_vec())?,
        ))
    }

    fn request(&mut self, subject: &str, body: &str) -> Result<Value> {
        write!(
            self.stream,
            "SUB _INBOX.q 7\r\nUNSUB 7 1\r\nPUB {subject} _INBOX.q {}\r\n{body}\r\n",
            body.len()
        )?;
        let (_, answer) = self.message()?;
        if answer.is_empty() {
            Ok(Value::Null)
        } else {
            Ok(serde_json::from_str(&answer)?)
        }
    }
}

fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    value.pointer(path).unwrap_or(&Value::Null)
}

#[test]
fn endpoints_answer() -> Result<()> {
    let running = Running::start(ACCOUNTS)?;
    let mut client = running.client("a", "a")?;
    client.subscribe("foo.*")?;
    let varz = running.json("/varz")?;
    assert_eq!(at(&varz, "/server_name"), "one");
    assert_eq!(at(&varz, "/version"), tidelock_base::COMPATIBLE_VERSION);
    assert_eq!(at(&varz, "/port"), running.control.addresses().listen_port);
    assert_eq!(at(&varz, "/http_req_stats/~1varz"), 1);
    assert_eq!(at(&varz, "/jetstream/config/max_memory"), 64 << 20);
    assert_eq!(at(&varz, "/connections"), 1);
    assert!(at(&varz, "/mem").as_u64().is_some_and(|mem| mem > 0));
    let connz = running.json("/connz?subs=1&auth=1")?;
    assert_eq!(at(&connz, "/connections/0/subscriptions_list"), &json!(["foo.*"]));
    assert_eq!(at(&connz, "/connections/0/authorized_user"), "a");
    assert_eq!(at(&connz, "/connections/0/name"), "tester");
    let detail = running.json("/connz?subs=detail&filter_subject=foo.bar&acc=A")?;
    assert_eq!(at(&detail, "/connections/0/subscriptions_list_detail/0/sid"), "1");
    assert_eq!(at(&running.json("/connz?acc=B")?, "/total"), 0);
    let subsz = running.json("/subsz?subs=1&test=foo.x")?;
    assert_eq!(at(&subsz, "/subscriptions_list/0/subject"), "foo.*");
    assert_eq!(at(&subsz, "/total"), 1);
    assert_eq!(at(&running.json("/accountz")?, "/system_account"), "SYS");
    assert_eq!(
        at(
            &running.json("/accountz?acc=A")?,
            "/account_detail/client_connections"
        ),
        1
    );
    assert_eq!(at(&running.json("/accstatz")?, "/account_statz/0/acc"), "A");
    assert_eq!(at(&running.json("/jsz")?, "/config/strict"), true);
    assert_eq!(at(&running.json("/routez")?, "/num_routes"), 0);
    assert_eq!(at(&running.json("/leafz")?, "/leafs"), &json!([]));
    assert_eq!(at(&running.json("/gatewayz")?, "/outbound_gateways"), &json!({}));
    assert_eq!(running.http("/healthz?js-server-only=1")?.2, r#"{"status":"ok"}"#);
    assert_eq!(running.http("/")?.0, 200);
    drop(client);
    running.stop();
    Ok(())
}

#[test]
fn what_cannot_be_answered_is_refused_in_nats_server_s_words() -> Result<()> {
    let running = Running::start(ACCOUNTS)?;
    let cases = [
        (
            "/connz?sort=stop",
            400,
            "sort by stop only valid on closed connections",
        ),
        ("/connz?state=xyz", 400, "Error decoding state for xyz"),
        (
            "/subsz?test=foo.*",
            400,
            "invalid test subject, must be valid publish subject: foo.*",
        ),
        ("/accountz?acc=NO", 400, "Account NO does not exist"),
        ("/raftz", 404, "No Raft nodes registered"),
        ("/varz/", 404, "404 page not found\n"),
        ("/nope", 404, "404 page not found\n"),
        (
            "/healthz?stream=S",
            400,
            r#"{"status":"error","error":"\"account\" must not be empty when checking stream health"}"#,
        ),
        (
            "/healthz?account=A&stream=NO",
            404,
            r#"{"status":"unavailable","error":"JetStream account \"A\" not found"}"#,
        ),
    ];
    for (path, status, text) in cases {
        assert_eq!(running.refused(path)?, (status, text.to_owned()), "{path}");
    }
    Ok(())
}

#[test]
fn closed_connections_are_remembered() -> Result<()> {
    let running = Running::start(&format!("max_closed_clients: 2\n{ACCOUNTS}"))?;
    let mut system = running.client("sys", "s")?;
    system.subscribe("$SYS.ACCOUNT.*.DISCONNECT")?;
    for _ in 0..3 {
        let mut client = running.client("a", "a")?;
        client.subscribe("foo")?;
        drop(client);
        let (subject, event) = system.message()?;
        assert_eq!(subject, "$SYS.ACCOUNT.A.DISCONNECT");
        let event: Value = serde_json::from_str(&event)?;
        assert_eq!(
            at(&event, "/type"),
            "io.nats.server.advisory.v1.client_disconnect"
        );
        assert_eq!(at(&event, "/reason"), "Client Closed");
        assert_eq!(at(&event, "/client/user"), "a");
    }
    let connz = running.json("/connz?state=closed&auth=1&subs=1&sort=stop")?;
    assert_eq!(at(&connz, "/total"), 2);
    assert_eq!(at(&connz, "/connections/0/reason"), "Client Closed");
    assert_eq!(at(&connz, "/connections/0/account"), "A");
    assert_eq!(at(&connz, "/connections/0/subscriptions_list"), &json!(["foo"]));
    Ok(())
}

#[test]
fn the_system_account_is_answered() -> Result<()> {
    let running = Running::start(ACCOUNTS)?;
    let mut system = running.client("sys", "s")?;
    let mut client = running.client("r", "r")?;
    let ping = system.request("$SYS.REQ.SERVER.PING", "")?;
    let id = at(&ping, "/server/id").as_str().context("no id")?.to_owned();
    assert_eq!(at(&ping, "/statsz/connections"), 2);
    let varz = system.request(&format!("$SYS.REQ.SERVER.{id}.VARZ"), "")?;
    assert_eq!(at(&varz, "/data/server_id"), &json!(id));
    let connz = system.request(
        "$SYS.REQ.SERVER.PING.CONNZ",
        r#"{"acc":"A","auth":true,"server_name":"on"}"#,
    )?;
    assert_eq!(at(&connz, "/data/connections/0/authorized_user"), "r");
    let none = system.request("$SYS.REQ.SERVER.NOBODY.VARZ", "")?;
    assert_eq!(none, Value::Null, "nobody answers for another server");
    let bad = system.request("$SYS.REQ.SERVER.PING.CONNZ", "{")?;
    assert_eq!(
        at(&bad, "/error"),
        &json!({ "code": 400, "description": "unexpected end of JSON input" })
    );
    let fault = system.request("$SYS.REQ.SERVER.PING.CONNZ", r#"{"sort":"bad"}"#)?;
    assert_eq!(at(&fault, "/error/description"), "invalid sorting option: bad");
    let health = system.request("$SYS.REQ.SERVER.PING.HEALTHZ", r#"{"js-server-only":true}"#)?;
    assert_eq!(
        at(&health, "/data"),
        &json!({ "status": "ok", "status_code": 200 })
    );
    let info = system.request("$SYS.REQ.ACCOUNT.A.INFO", "")?;
    assert_eq!(at(&info, "/data/client_connections"), 1);
    let conns = system.request("$SYS.REQ.ACCOUNT.A.CONNS", "")?;
    assert_eq!(
        at(&conns, "/type"),
        "io.nats.server.advisory.v1.account_connections"
    );
    let kick = system.request(&format!("$SYS.REQ.SERVER.{id}.KICK"), r#"{"cid":999}"#)?;
    assert_eq!(at(&kick, "/error/description"), "no such client or leafnode id");
    let user = client.request("$SYS.REQ.USER.INFO", "")?;
    assert_eq!(at(&user, "/data/user"), "r");
    assert_eq!(at(&user, "/data/permissions/publish/deny"), &json!(["nope"]));
    let own = client.request("$SYS.REQ.SERVER.PING.CONNZ", "")?;
    assert_eq!(at(&own, "/data/total"), 1, "only the account's own");
    assert_eq!(client.request("$SYS.REQ.SERVER.PING.VARZ", "")?, Value::Null);
    let cid = at(&own, "/data/connections/0/cid").as_u64().context("no cid")?;
    let told = system.request(
        &format!("$SYS.REQ.SERVER.{id}.LDM"),
        &format!("{{\"cid\":{cid}}}"),
    )?;
    assert_eq!(at(&told, "/error"), &Value::Null);
    assert!(client.line("INFO")?.contains("\"ldm\":true"));
    system.request(
        &format!("$SYS.REQ.SERVER.{id}.KICK"),
        &format!("{{\"cid\":{cid}}}"),
    )?;
    while client.next()?.is_some() {}
    assert_eq!(
        at(&running.json("/connz?state=closed")?, "/connections/0/reason"),
        "Kicked"
    );
    Ok(())
}

#[test]
fn lame_duck_mode_tells_clients_and_closes_them() -> Result<()> {
    let times = "lame_duck_grace_period: 100ms\n";
    let mut running = Running::start(&format!("{times}{ACCOUNTS}"))?;
    let mut system = running.client("sys", "s")?;
    system.subscribe("$SYS.SERVER.*.LAMEDUCK")?;
    let mut client = running.client("a", "a")?;
    running.control.lame_duck();
    assert!(client.line("INFO")?.contains("\"ldm\":true"));
    assert!(system.message()?.0.ends_with(".LAMEDUCK"));
    let health = running.refused("/healthz")?;
    assert_eq!(health.0, 500);
    assert!(
        health.1.contains("failed to be ready for connections"),
        "{health:?}"
    );
    assert!(running.client("a", "a").is_err(), "the listener is closed");
    while client.next()?.is_some() {}
    while system.next()?.is_some() {}
    running.server.take().into_iter().for_each(Server::wait);
    Ok(())
}

#[test]
fn a_stop_hands_clients_what_is_there_for_them() -> Result<()> {
    let running = Running::start(ACCOUNTS)?;
    let mut client = running.client("a", "a")?;
    client.subscribe("foo")?;
    let payload = "x".repeat(1000);
    let mut publisher = running.client("a", "a")?;
    for _ in 0..2000 {
        write!(publisher.stream, "PUB foo 1000\r\n{payload}\r\n")?;
    }
    write!(publisher.stream, "PING\r\n")?;
    publisher.line("PONG")?;
    running.control.stop();
    for n in 0..2000 {
        assert_eq!(
            client.message().with_context(|| format!("message {n}"))?.1,
            payload
        );
    }
    assert_eq!(client.next()?, None);
    Ok(())
}

#[test]
fn a_monitoring_port_that_is_taken_is_fatal() -> Result<()> {
    let running = Running::start("")?;
    let port = running.control.addresses().http_port;
    let words = ["-a", "127.0.0.1", "-p", "-1", "-m", &port.to_string()].map(str::to_owned);
    let (flags, _) = parse_flags(&words)?;
    let error = Server::start(load(&flags, &Text(String::new()))?.options)
        .err()
        .context("it started")?;
    assert_eq!(
        error.to_string(),
        format!(
            "Can't start monitoring: can't listen to the monitor port: listen tcp 127.0.0.1:{port}: bind: \
             address already in use"
        )
    );
    Ok(())
}
