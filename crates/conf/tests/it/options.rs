//! Keys and flags, and the options they come to.

use std::time::Duration;

use crate::memory::Memory;
use tidelock_auth::{ConnectionType, Credentials, Responses, SubscribeCheck, Verdict};
use tidelock_conf::{HostPort, Options, SyncInterval};

fn options(text: &str) -> Options {
    Memory::of(text)
        .load("-c q.conf")
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .options
}

fn with_flags(text: &str, flags: &str) -> Options {
    Memory::of(text)
        .load(&format!("-c q.conf {flags}"))
        .unwrap_or_else(|error| panic!("{flags}: {error}"))
        .options
}

fn flags(words: &str) -> Options {
    Memory::default()
        .load(words)
        .unwrap_or_else(|error| panic!("{words}: {error}"))
        .options
}

fn refused(text: &str, words: &str) -> String {
    Memory::of(text)
        .load(&format!("-c q.conf {words}"))
        .unwrap_err()
        .to_string()
}

/// The one problem of a file, without its place.
fn problem(text: &str) -> String {
    let shown = Memory::of(text).check();
    let line = shown.lines().next().unwrap();
    assert_eq!(shown.lines().count(), 1, "{shown}");
    line.splitn(4, ':')
        .nth(3)
        .unwrap_or_else(|| panic!("{text}: {line}"))
        .trim()
        .to_owned()
}

fn log_in(options: &Options, user: &str, pass: &str, token: &str) -> String {
    let given = Credentials {
        user,
        pass,
        token,
        other: false,
        connection: ConnectionType::Standard,
    };
    match options.users.authenticate(&given) {
        Verdict::Accepted(identity) => format!("{}/{}", identity.account, identity.user),
        Verdict::Refused => "refused".to_owned(),
        Verdict::Slow(_) => "slow".to_owned(),
    }
}

#[test]
fn defaults() {
    let options = flags("");
    assert_eq!(options.listen, HostPort::new("0.0.0.0", 4222));
    assert_eq!(options.limits.max_connections, Some(65_536));
    assert_eq!(options.limits.max_payload, 1_048_576);
    assert_eq!(options.ping_interval, Duration::from_secs(120));
    assert_eq!(options.auth_timeout, Duration::from_secs(2));
    assert_eq!(options.lame_duck_grace_period, Duration::from_secs(10));
    assert!(options.log.time && !options.log.debug && options.system_events);
    assert!(options.monitor.is_none() && options.cluster.is_none() && options.jetstream.is_none());
    let names: Vec<_> = options
        .accounts
        .iter()
        .map(|account| account.name.as_str())
        .collect();
    assert_eq!(names, ["$G", "$SYS"]);
    assert!(options.accounts[0].jetstream.is_some() && options.accounts[1].jetstream.is_none());
    assert!(!options.users.required());
}

#[test]
fn addresses() {
    assert_eq!(options("listen: 1.2.3.4:5").listen, HostPort::new("1.2.3.4", 5));
    assert_eq!(options("listen: 5\nhost: a").listen, HostPort::new("a", 5));
    assert_eq!(options("net: a\nport: -1").listen, HostPort::new("a", 0));
    assert_eq!(options("port: 0").listen.port, 4222);
    assert_eq!(
        options("listen: \"[::1]:4222\"").listen,
        HostPort::new("::1", 4222)
    );
    assert_eq!(options("listen: \"[::1]:4222\"").listen.to_string(), "[::1]:4222");
    assert_eq!(problem("listen: abc"), "could not parse address string \"abc\"");
    assert_eq!(problem("listen: \"abc:x\""), "could not parse port \"x\"");
    assert_eq!(problem("listen: true"), "expected port or host:port, got bool");
    assert_eq!(problem("port: 70000"), "invalid port 70000, expected -1 to 65535");
    let advertise = options("client_advertise: \"a.b:7\"").client_advertise.unwrap();
    assert_eq!((advertise.host.as_str(), advertise.port), ("a.b", Some(7)));
    assert_eq!(
        options("client_advertise: a").client_advertise.unwrap().port,
        None
    );
    assert!(problem("client_advertise: \"a:1:2\"").starts_with("could not parse port"));
}

#[test]
fn monitoring_listens_where_clients_do_unless_told_otherwise() {
    let monitor = options("http: 8222\nhost: a").monitor.unwrap();
    assert_eq!(
        (monitor.listen, monitor.base_path.as_str()),
        (HostPort::new("a", 8222), "/")
    );
    let monitor = options("http: b:8222\nhost: a\nhttp_base_path: x/")
        .monitor
        .unwrap();
    assert_eq!(
        (monitor.listen, monitor.base_path.as_str()),
        (HostPort::new("b", 8222), "/x")
    );
    assert_eq!(options("monitor_port: -1").monitor.unwrap().listen.port, 0);
    assert!(options("http_port: 0").monitor.is_none());
}

#[test]
fn names_and_tags() {
    assert_eq!(
        problem("server_name: \"a b\""),
        "server name cannot contain spaces"
    );
    assert_eq!(options("server_tags: [\" A\", b, B ]").server_tags, ["a", "b"]);
    assert_eq!(options("server_tags: \"A\"").server_tags, ["a"]);
    assert_eq!(options("server_metadata: {A: b}").server_metadata["A"], "b");
    assert_eq!(
        Memory::of("server_metadata: {a: 1}").check(),
        "q.conf:1:18: interface conversion: interface {} is int64, not string\n"
    );
}

/// Texts of nats-server 2.15.1.
#[test]
fn some_values_of_the_wrong_type_have_texts_of_their_own() {
    for (text, told) in [
        ("server_tags: 1", "error parsing tags: unsupported type int64"),
        ("system_account: 1", "system account name must be a string"),
        (
            "authorization { users: 1 }",
            "Expected users field to be an array, got 1",
        ),
        (
            "authorization { timeout: true }",
            "error parsing authorization config, 'timeout' wrong type",
        ),
    ] {
        assert_eq!(problem(text), told);
    }
}

/// Texts of nats-server 2.15.1.
#[test]
fn values_of_the_wrong_type_are_told_in_the_words_of_nats_server() {
    for (text, got, wanted) in [
        ("port: true", "bool", "int64"),
        ("port: 1.5", "float64", "int64"),
        ("port: [\"a\"]", "[]interface {}", "int64"),
        ("port: {a: 1}", "map[string]interface {}", "int64"),
        ("port: 2006-01-02T15:04:05Z", "time.Time", "int64"),
        ("debug: 1", "int64", "bool"),
        ("host: 1", "int64", "string"),
        ("authorization: 1", "int64", "map[string]interface {}"),
        ("ping_interval: true", "bool", "int64"),
        ("lame_duck_duration: 5", "int64", "string"),
    ] {
        assert_eq!(
            problem(text),
            format!("interface conversion: interface {{}} is {got}, not {wanted}"),
            "{text}"
        );
    }
    assert_eq!(problem("cluster: 1"), "Expected map to define cluster, got int64");
}

#[test]
fn durations_and_their_warnings() {
    assert_eq!(
        options("ping_interval: 1m30s").ping_interval,
        Duration::from_secs(90)
    );
    assert_eq!(
        options("ping_interval: 10").ping_interval,
        Duration::from_secs(10)
    );
    assert_eq!(
        Memory::of("ping_interval: 2m").check(),
        "q.conf:1:0: invalid use of field \"ping_interval\": ping_interval should be converted to a duration\n"
    );
    let loaded = Memory::of("write_deadline: 3").load("-c q.conf").unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert_eq!(loaded.options.write_deadline, Duration::from_secs(3));
    assert_eq!(
        problem("ping_interval: \"10x\""),
        "error parsing ping_interval: time: unknown unit \"x\" in duration \"10x\""
    );
    assert_eq!(
        problem("lame_duck_duration: 5s"),
        "invalid lame_duck_duration of 5s, minimum is 30 seconds"
    );
    assert_eq!(
        problem("lame_duck_duration: 2m"),
        "interface conversion: interface {} is int64, not string"
    );
    assert_eq!(
        problem("lame_duck_grace_period: \"-1s\""),
        "invalid lame_duck_grace_period, needs to be positive"
    );
}

#[test]
fn limits() {
    assert_eq!(options("max_connections: 0").limits.max_connections, None);
    assert_eq!(options("max_conn: 5").limits.max_connections, Some(5));
    assert_eq!(options("max_subs: 7").limits.max_subscriptions, Some(7));
    assert_eq!(
        options("max_sub_tokens: 9").limits.max_subscription_tokens,
        Some(9)
    );
    assert_eq!(problem("max_sub_tokens: 300"), "max_sub_tokens value is too big");
    assert_eq!(
        problem("max_control_line: 99999999999"),
        "max_control_line value is too big"
    );
    assert_eq!(
        problem("max_payload: -1"),
        "max_payload value can not be negative"
    );
    assert_eq!(options("max_payload: 0").limits.max_payload, 1_048_576);
    assert!(Memory::of("max_pending: -1").check().starts_with("sha256:"));
    assert_eq!(
        refused("max_pending: -1", ""),
        "max_payload (1048576) cannot be higher than max_pending (-1)"
    );
    assert_eq!(options("max_pending: 0").limits.max_pending, 67_108_864);
    assert_eq!(
        refused("max_payload: 5000\nmax_pending: 4000", ""),
        "max_payload (5000) cannot be higher than max_pending (4000)"
    );
}

#[test]
fn tracing_options_imply_tracing() {
    assert!(options("trace_headers: true").log.trace);
    let log =
        options("trace_verbose: true\nlogfile: \"/a\"\nlog_size_limit: 5\nlog_max_num: 3\nlogtime: no").log;
    assert!(log.trace && log.trace_verbose && !log.time);
    assert_eq!(
        (log.file.as_deref(), log.size_limit, log.max_files),
        (Some("/a"), 5, 3)
    );
}

#[test]
fn what_is_not_there_yet_says_so() {
    for key in [
        "tls: {}",
        "leafnodes {}",
        "gateway {}",
        "websocket {}",
        "mqtt {}",
        "operator: x",
        "resolver: MEM",
        "mappings {}",
        "syslog: true",
        "prof_port: 5",
        "https: 1",
        "proxy_protocol: true",
        "ocsp: true",
        "feature_flags {}",
        "no_header_support: true",
    ] {
        let name = key.split([':', ' ']).next().unwrap();
        assert_eq!(
            problem(key),
            format!("\"{name}\" is not supported by this version of Tidelock yet"),
            "{key}"
        );
    }
    for (text, name) in [
        ("authorization {users: [{nkey: U}]}", "nkey"),
        ("authorization {auth_callout {}}", "auth_callout"),
        ("accounts {A {exports: []}}", "exports"),
        ("accounts {A {imports: []}}", "imports"),
        ("accounts {A {mappings {}}}", "mappings"),
        ("cluster {tls {}}", "tls"),
        ("cluster {accounts: []}", "accounts"),
        ("jetstream {key: a}", "key"),
        ("jetstream {cipher: aes}", "cipher"),
        ("jetstream {tpm {}}", "tpm"),
    ] {
        assert_eq!(
            problem(text),
            format!("\"{name}\" is not supported by this version of Tidelock yet"),
            "{text}"
        );
    }
    // Off is what they are anyway.
    options("syslog: false\nprof_port: 0\nproxy_protocol: no\nallow_non_tls: true\nwrite_timeout: close");
    assert_eq!(
        refused("", "--tls"),
        "\"--tls\" is not supported by this version of Tidelock yet"
    );
    assert_eq!(
        refused("", "-ms 5"),
        "\"--https_port\" is not supported by this version of Tidelock yet"
    );
    with_flags("", "-s=false --tls=false");
}

#[test]
fn all_problems_are_reported_with_the_warnings_first() {
    let shown = Memory::of("foo: 1\nping_interval: 5\nport: x\n").check();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("q.conf:2:1: invalid use of field"));
    assert_eq!(lines[1], "q.conf:1:0: unknown field \"foo\"");
    assert_eq!(
        lines[2],
        "q.conf:3:1: interface conversion: interface {} is string, not int64"
    );
}

#[test]
fn single_users_and_tokens() {
    let single = options("authorization {user: a, password: b, timeout: 1.5}");
    assert_eq!(single.auth_timeout, Duration::from_millis(1500));
    assert_eq!(log_in(&single, "a", "b", ""), "$G/a");
    assert_eq!(log_in(&single, "a", "c", ""), "refused");
    let token = options("authorization {token: t, timeout: 5s}");
    assert_eq!(log_in(&token, "", "", "t"), "$G/");
    assert_eq!(log_in(&token, "", "", ""), "refused");
    for (text, error) in [
        (
            "authorization {token: a, user: b}",
            "Cannot have a user/pass and token",
        ),
        (
            "authorization {token: a, users: []}",
            "Can not have a token and a users array",
        ),
        (
            "authorization {user: a, password: b, users: []}",
            "Can not have a single user/pass and a users array",
        ),
        ("authorization {password: a}", "a password needs a user"),
        (
            "authorization {timeout: abc}",
            "error parsing authorization config, 'timeout' time: invalid duration \"abc\"",
        ),
        (
            "authorization {user: a}\naccounts {A {users: [{user: b}]}}",
            "Can not have a single user/pass and accounts",
        ),
        (
            "authorization {token: a}\naccounts {A {users: [{user: b}]}}",
            "Can not have a token and accounts",
        ),
    ] {
        assert_eq!(problem(text), error, "{text}");
    }
    assert!(
        Memory::of("authorization {timeout: 61}")
            .check()
            .contains("timeout of 61 seconds is high")
    );
}

#[test]
fn users_have_their_own_permissions_or_the_default_ones() {
    let options = options(
        "authorization {
           default_permissions: {publish: d}
           users: [
             {user: a, password: x, permissions: {pub: [p, \"q.>\"], sub: {allow: [\"s.*\", \"t g\"], deny: s.no},
               allow_responses: {max: 5, ttl: 3s}}}
             {user: b, password: y}
           ]
         }",
    );
    let identity = |user: &str, pass: &str| {
        let given = Credentials {
            user,
            pass,
            token: "",
            other: false,
            connection: ConnectionType::Standard,
        };
        match options.users.authenticate(&given) {
            Verdict::Accepted(identity) => identity,
            other => panic!("{other:?}"),
        }
    };
    let own = identity("a", "x").permissions;
    assert!(own.can_publish(b"q.r") && !own.can_publish(b"d"));
    assert_eq!(own.can_subscribe(b"s.no", None), SubscribeCheck::Denied);
    assert_eq!(
        own.can_subscribe(b"s.*", None),
        SubscribeCheck::AllowedWithDenyFilter
    );
    assert_eq!(own.can_subscribe(b"t", Some(b"g")), SubscribeCheck::Allowed);
    assert_eq!(
        own.allow_responses(),
        Some(Responses {
            max: 5,
            expires_ns: 3_000_000_000
        })
    );
    let default = identity("b", "y").permissions;
    assert!(default.can_publish(b"d") && !default.can_publish(b"p"));
}

#[test]
fn wrong_users_and_permissions() {
    let user = |inside: &str| problem(&format!("authorization {{users: [{{user: a, {inside}}}]}}"));
    assert_eq!(
        problem("authorization {users: [{password: a}]}"),
        "User entry requires a user"
    );
    assert_eq!(
        Memory::of("authorization {users: [{password: a}]}").check(),
        "q.conf:1:24: User entry requires a user\n"
    );
    assert_eq!(
        problem("authorization {users: [{user: a}, {user: a}]}"),
        "Duplicate user \"a\" detected"
    );
    assert_eq!(
        problem("authorization {users: {}}"),
        "Expected users field to be an array, got a map"
    );
    assert_eq!(user("foo: 1"), "unknown field \"foo\"");
    assert_eq!(
        user("password: 5"),
        "interface conversion: interface {} is int64, not string"
    );
    assert_eq!(
        user("permissions: {foo: 1}"),
        "Unknown field \"foo\" parsing permissions"
    );
    assert_eq!(
        user("permissions: {publish: \"a b\"}"),
        "subject \"a b\" is not a valid subject"
    );
    assert_eq!(
        user("permissions: {subscribe: \"a b..c\"}"),
        "queue \"b..c\" is not a valid queue"
    );
    assert_eq!(
        user("permissions: {publish: {foo: a}}"),
        "Unknown field name \"foo\" parsing subject permissions, only 'allow' or 'deny' are permitted"
    );
    assert_eq!(
        user("permissions: {allow_responses: 5}"),
        "error parsing response permissions, expected a boolean or a map"
    );
    assert_eq!(
        user("allowed_connection_types: [STANDARD, x]"),
        "invalid connection types [\"X\"]"
    );
    assert_eq!(
        problem("authorization {users: [{user: a}]}\naccounts {A {users: [{user: a}]}}"),
        "Duplicate user \"a\" detected"
    );
}

#[test]
fn accounts_come_in_a_fixed_order() {
    let options = options(
        "accounts {
           Z {users: [{user: z, password: p}], limits {max_conn: 5, max_payload: 6}, jetstream: enabled}
           SYS {users: [{user: s, password: p}]}
           A {jetstream {max_mem: 5MB, max_file: 7, max_streams: 2, max_bytes_required: true}}
         }
         system_account: SYS",
    );
    let names: Vec<_> = options
        .accounts
        .iter()
        .map(|account| account.name.as_str())
        .collect();
    assert_eq!(names, ["$G", "SYS", "Z", "A"]);
    assert_eq!(options.accounts[2].limits.max_connections, 5);
    assert_eq!(options.accounts[2].users, ["z"]);
    let share = options.accounts[3].jetstream.clone().unwrap();
    assert_eq!(
        (share.max_memory, share.max_store, share.max_streams),
        (5 << 20, 7, 2)
    );
    assert_eq!((share.max_consumers, share.max_bytes_required), (-1, true));
    // With accounts of their own, `$G` has no part in JetStream.
    assert!(options.accounts[0].jetstream.is_none());
    assert_eq!(log_in(&options, "z", "p", ""), "Z/z");
    assert_eq!(log_in(&options, "", "", ""), "refused");
    assert_eq!(self::options("accounts: [A, B]").accounts.len(), 4);
}

#[test]
fn an_admin_of_the_system_account_leaves_the_server_open() {
    let open = options("accounts {$SYS {users: [{user: a, password: p}]}}");
    assert_eq!(log_in(&open, "", "", ""), "$G/");
    assert_eq!(log_in(&open, "a", "p", ""), "$SYS/a");
    assert_eq!(log_in(&open, "a", "x", ""), "refused");
    assert!(open.accounts[0].jetstream.is_some());
    for closed in [
        "authorization {}\naccounts {$SYS {users: [{user: a, password: p}]}}",
        "accounts {A {}, $SYS {users: [{user: a, password: p}]}}",
    ] {
        assert_eq!(log_in(&options(closed), "", "", ""), "refused", "{closed}");
    }
}

#[test]
fn wrong_accounts() {
    for (text, error) in [
        ("accounts: [A, A]", "Duplicate Account Entry: A"),
        ("accounts: {A: 5}", "Expected map entries for accounts"),
        ("accounts: {\"$G\": {}}", "\"$G\" is a Reserved Account"),
        (
            "accounts: {A: {limits: {foo: 3}}}",
            "Unknown field \"foo\" parsing account limits",
        ),
        (
            "accounts: {A: {jetstream: foo}}",
            "Expected 'enabled' or 'disabled' for string value, got 'foo'",
        ),
        (
            "accounts: {A: {jetstream: {max_mem: abc}}}",
            "Expected a parseable size for \"max_mem\"",
        ),
        (
            "accounts: {A: {jetstream: {cluster_traffic: foo}}}",
            "Expected 'system' or 'owner' string value for \"cluster_traffic\", got foo",
        ),
    ] {
        assert_eq!(problem(text), error, "{text}");
    }
    assert_eq!(
        refused("system_account: X", ""),
        "error resolving system account: account missing"
    );
    assert_eq!(
        refused("accounts {$SYS {jetstream: enabled}}\njetstream: true", ""),
        "Not allowed to enable JetStream on the system account"
    );
    assert_eq!(
        refused("no_auth_user: q\naccounts {A {users: [{user: a}]}}", ""),
        "no_auth_user: \"q\" not present as user or nkey in authorization block or account configuration"
    );
    assert!(!options("no_sys_acc: true").system_events);
}

#[test]
fn clusters() {
    let options = options(
        "server_name: s
         cluster {
           name: c, listen: 1.2.3.4:6222, pool_size: -1, no_advertise: true, connect_retries: 3, advertise: \"h:9\"
           authorization {user: u, password: p, timeout: 4}
           routes: [\"nats://a:1\", nats-route://x:y%21@b:2, \"c\"]
           ping_interval: 5s, write_timeout: retry
         }",
    );
    assert_eq!(options.cluster_name.as_deref(), Some("c"));
    let cluster = options.cluster.unwrap();
    assert_eq!(cluster.listen, HostPort::new("1.2.3.4", 6222));
    assert_eq!(
        (cluster.pool_size, cluster.connect_retries, cluster.no_advertise),
        (1, 3, true)
    );
    assert_eq!(cluster.auth_timeout, Duration::from_secs(4));
    assert_eq!(cluster.credentials.unwrap().password.expose(), "p");
    let addresses: Vec<_> = cluster
        .routes
        .iter()
        .map(|route| route.address.to_string())
        .collect();
    assert_eq!(addresses, ["a:1", "b:2", "c:6222"]);
    let credentials = cluster.routes[1].credentials.clone().unwrap();
    assert_eq!(
        (credentials.user.as_str(), credentials.password.expose()),
        ("x", "y!")
    );
    assert_eq!(cluster.ping_interval, Duration::from_secs(5));
    assert_eq!(cluster.advertise.unwrap().port, Some(9));
}

#[test]
fn a_cluster_needs_a_port() {
    let alone = options("cluster {name: c}\nserver_name: s\njetstream: true");
    assert!(alone.cluster.is_none() && alone.jetstream.is_some());
    assert_eq!(alone.cluster_name.as_deref(), Some("c"));
    let small = options("cluster {port: 6222}\nping_interval: 5s")
        .cluster
        .unwrap();
    assert_eq!(
        (small.ping_interval, small.pool_size),
        (Duration::from_secs(5), 3)
    );
    assert_eq!(
        options("cluster {port: 6222}").cluster.unwrap().ping_interval,
        Duration::from_secs(30)
    );
}

#[test]
fn wrong_clusters() {
    for (text, error) in [
        ("cluster {name: \"a b\"}", "cluster name cannot contain spaces"),
        (
            "cluster {authorization {users: []}}",
            "Cluster authorization does not allow multiple users",
        ),
        (
            "cluster {authorization {token: x}}",
            "Cluster authorization does not support tokens",
        ),
        (
            "cluster {compression: foo}",
            "unsupported compression mode \"foo\"",
        ),
        (
            "cluster {compression: true}",
            "compression \"true\" is not supported by this version of Tidelock yet",
        ),
        (
            "cluster {routes: [\"nats://h:x\" ]}",
            "error parsing route url: could not parse port \"x\"",
        ),
        (
            "cluster {write_timeout: foo}",
            "write_timeout must be 'default', 'close' or 'retry'",
        ),
    ] {
        assert_eq!(problem(text), error, "{text}");
    }
    let twice = "cluster {port: 1, routes: [\"nats://a:b@h:1\", \"nats://a:b@h:1\" ]}";
    assert!(
        Memory::of(twice)
            .check()
            .ends_with("Duplicate route entry detected\n")
    );
    let jetstream = "jetstream: true\ncluster {port: 1, name: c}";
    assert_eq!(
        refused(jetstream, ""),
        "jetstream cluster requires `server_name` to be set"
    );
    assert_eq!(
        refused("jetstream: true\nserver_name: s\ncluster {port: 1}", ""),
        "jetstream cluster requires `cluster.name` to be set"
    );
    assert_eq!(
        refused(jetstream, "-n s"),
        "Can't start JetStream: JetStream cluster requires configured routes or solicited leafnode for the system account"
    );
}

#[test]
fn jetstream() {
    assert!(options("jetstream: disabled").jetstream.is_none());
    assert!(options("jetstream {enabled: false}").jetstream.is_none());
    let default = options("jetstream: enabled").jetstream.unwrap();
    assert_eq!(
        (default.sync_interval, default.strict),
        (SyncInterval::Always, true)
    );
    let options = options(
        "jetstream {
           store_dir: '/a', max_mem: \"5M\", max_file: 1Gb, sync: 10s, domain: d, unique_tag: \"az\"
           limits {max_ack_pending: 5, duplicate_window: 3s, batch {max_msgs: 7, timeout: 1s}}
           request_queue_limit: 50, max_buffered_size: 128KB, max_concurrent_io: 8, meta_compact_sync: true
         }",
    );
    let jetstream = options.jetstream.unwrap();
    assert_eq!(jetstream.store_dir.as_deref(), Some("/a"));
    assert_eq!(
        (jetstream.max_memory, jetstream.max_store),
        (Some(5 << 20), Some(1 << 30))
    );
    assert_eq!(
        jetstream.sync_interval,
        SyncInterval::Every(Duration::from_secs(10))
    );
    assert_eq!(
        (jetstream.request_queue_limit, jetstream.info_queue_limit),
        (50, 50)
    );
    assert_eq!(jetstream.limits.batch_max_msgs, Some(7));
    assert_eq!(
        (jetstream.max_buffered_size, jetstream.max_concurrent_io),
        (Some(128 << 10), 8)
    );
    for (text, error) in [
        (
            "jetstream: foo",
            "Expected 'enabled' or 'disabled' for string value, got 'foo'",
        ),
        (
            "jetstream: 5",
            "Expected map, bool or string to define JetStream, got int64",
        ),
        (
            "jetstream {domain: \"a.b\"}",
            "invalid domain name: may not contain ., * or >, nor spaces",
        ),
        (
            "jetstream {max_mem: 5x}",
            "max_mem_store sizes defined as strings must end in K, M, G, T",
        ),
        (
            "jetstream {max_mem: 1.5}",
            "max_mem_store must be int64 or string",
        ),
        (
            "jetstream {max_concurrent_io: 3}",
            "Expected an absolute size for \"max_concurrent_io\" between 4 and 8192, got 3",
        ),
        (
            "store_dir: /a\njetstream {store_dir: /b}",
            "Duplicate 'store_dir' configuration",
        ),
        (
            "jetstream {store_dir: /b}\nstore_dir: /a",
            "Duplicate 'store_dir' configuration",
        ),
        ("jetstream {limits {foo: 1}}", "unknown field \"foo\""),
    ] {
        assert_eq!(problem(text), error, "{text}");
    }
}

#[test]
fn lame_duck_mode_must_have_time_left() {
    assert_eq!(
        refused("lame_duck_grace_period: \"3m\"", ""),
        "lame duck grace period (3m0s) should be strictly lower than lame duck duration (2m0s)"
    );
}

#[test]
fn flags_win_over_the_file() {
    let text = "port: 1\nserver_name: f\njetstream {store_dir: /f, max_mem: 7}\nhttp: 2\nlogfile: x\ndebug: true
                cluster {name: c, listen: 1.2.3.4:3, routes: [\"nats://a:1\"]}\nauthorization {user: u, password: p}";
    let options = with_flags(
        text,
        "-p -1 -a h -n g -m 9 -sd /g -l y -D=false -V --cluster nats://x:y@k:8 --routes nats://b:2,nats://c:3 \
         --cluster_name d -user v -pass q -P pid --connect_retries 4 --client_advertise z",
    );
    assert_eq!(options.listen, HostPort::new("h", 0));
    assert_eq!(options.server_name.as_deref(), Some("g"));
    assert_eq!(options.monitor.unwrap().listen.port, 9);
    let jetstream = options.jetstream.unwrap();
    assert_eq!(
        (jetstream.store_dir.as_deref(), jetstream.max_memory),
        (Some("/g"), Some(7))
    );
    assert_eq!(options.log.file.as_deref(), Some("y"));
    assert!(!options.log.debug && options.log.trace);
    let cluster = options.cluster.unwrap();
    assert_eq!(cluster.listen, HostPort::new("k", 8));
    assert_eq!(cluster.credentials.unwrap().user, "x");
    assert_eq!((cluster.routes.len(), cluster.connect_retries), (2, 4));
    assert_eq!(options.cluster_name.as_deref(), Some("d"));
    assert_eq!(options.pid_file.as_deref(), Some("pid"));
    assert_eq!(options.client_advertise.unwrap().host, "z");
    assert_eq!(options.config_file.unwrap().path, "q.conf");
}

#[test]
fn flags_alone() {
    let options = flags("--jetstream --store_dir /s -DVV -T=false --logtime_utc");
    assert_eq!(options.jetstream.unwrap().store_dir.as_deref(), Some("/s"));
    assert!(options.log.debug && options.log.trace && options.log.trace_verbose);
    assert!(!options.log.time && options.log.utc);
    assert!(flags("-sd /s").jetstream.is_none());
    let options = flags("--auth t");
    assert_eq!(log_in(&options, "", "", "t"), "$G/");
    let cluster = flags("--cluster nats://127.0.0.1:-1").cluster.unwrap();
    assert_eq!(cluster.listen, HostPort::new("127.0.0.1", 0));
    assert!(
        with_flags("cluster {port: 3, routes: [\"nats://a:1\"]}", "--cluster=")
            .cluster
            .is_none()
    );
}

#[test]
fn wrong_flags() {
    assert_eq!(
        refused("", "--routes nats://a:1"),
        "solicited routes require cluster capabilities, e.g. --cluster"
    );
    assert_eq!(
        refused("", "--cluster nats://a@h:1"),
        "expected cluster password to be set"
    );
    assert_eq!(
        refused("", "--cluster nats://h"),
        "address h: missing port in address"
    );
    assert_eq!(
        refused("", "-n= -p 70000"),
        "invalid port 70000 for -p, expected -1 to 65535"
    );
    assert_eq!(refused("", "--pass x"), "a password needs a user");
}
