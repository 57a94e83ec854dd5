//! Accounts and subscriptions: `accountz`, `accstatz`, `subsz`, and figures of one account for events.

use super::body::{Body, Reply};
use super::gather::{Part, subsz_page};
use super::requests::IMPORTS;
use crate::shared::Account;
use crate::worker::Core;
use std::sync::atomic::Ordering;
use tidelock_api::Time;
use tidelock_api::event::{AccountStat, AccountTraffic, Traffic};
use tidelock_api::monitor::{
    AccountDetail, AccountImport, AccountStatz, AccountStatzOptions, Accountz, AccountzOptions, SublistStats,
    Subsz, SubszOptions,
};

impl Core {
    /// `accountz`
    pub(super) fn accountz(&self, options: &AccountzOptions) -> Reply {
        let shared = &self.shared;
        let mut accountz = Accountz {
            server_id: shared.identity.server_id.to_string(),
            now: Time(self.now.wall),
            system_account: shared.options.system_account.clone(),
            ..Accountz::default()
        };
        if options.account.is_empty() {
            accountz.accounts = shared
                .accounts
                .iter()
                .map(|account| account.name.to_string())
                .collect();
        } else {
            let Some(account) = self.account_by_name(&options.account) else {
                return no_account(&options.account);
            };
            accountz.account_detail = Some(self.account_detail(account));
        }
        Reply::Body(Body::Accountz(Box::new(accountz)))
    }

    /// `ACCOUNT.<name>.INFO`
    pub(super) fn account_answer(&self, name: &str) -> Reply {
        match self.account_by_name(name) {
            Some(account) => Reply::Body(Body::Account(Box::new(self.account_detail(account)))),
            None => no_account(name),
        }
    }

    pub(super) fn account_by_name(&self, name: &str) -> Option<&Account> {
        self.shared
            .account_id(name)
            .and_then(|id| self.shared.account(id))
    }

    fn account_detail(&self, account: &Account) -> AccountDetail {
        AccountDetail {
            account_name: account.name.to_string(),
            update_time: Time(self.shared.identity.start.wall),
            is_system: account.system,
            complete: true,
            jetstream_enabled: account.jetstream.is_some(),
            client_connections: account.connections.load(Ordering::Relaxed),
            subscriptions: account.subscriptions.load(Ordering::Relaxed),
            imports: self.imports(account),
            name_tag: account.name.to_string(),
            sublist_stats: Some(sublist_stats(std::iter::once(account), 0)),
            ..AccountDetail::default()
        }
    }

    /// What every account can ask of the system account.
    fn imports(&self, account: &Account) -> Vec<AccountImport> {
        if !self.shared.options.system_events || account.system {
            return Vec::new();
        }
        let imports = IMPORTS.iter().map(|import| AccountImport {
            subject: import.remote.replace('*', &account.name),
            account: self.shared.options.system_account.clone(),
            to: import.local.to_owned(),
            local_subject: import.local.to_owned(),
            kind: "service".to_owned(),
            share: import.share,
            ..AccountImport::default()
        });
        let api = "$JS.API.>".to_owned();
        let jetstream = self.shared.options.jetstream.as_ref().map(|_| AccountImport {
            subject: api.clone(),
            account: self.shared.options.system_account.clone(),
            to: api.clone(),
            local_subject: api,
            kind: "service".to_owned(),
            share: true,
            ..AccountImport::default()
        });
        imports.chain(jetstream).collect()
    }

    /// `accstatz`; nothing at all where a list of accounts was given and none of them is shown.
    pub(super) fn accstatz(&self, options: &AccountStatzOptions, part: &Part) -> Reply {
        let listed = |account: &&Account| {
            options.accounts.is_empty() || options.accounts.iter().any(|name| *name == *account.name)
        };
        let used =
            |account: &&Account| options.include_unused || account.connections.load(Ordering::Relaxed) > 0;
        let shown = self.shared.accounts.iter().filter(listed).filter(used);
        let account_statz: Vec<_> = shown.map(|account| account_stat(account, part)).collect();
        if account_statz.is_empty() && !options.accounts.is_empty() {
            return Reply::Silence;
        }
        Reply::Body(Body::Accstatz(AccountStatz {
            server_id: self.shared.identity.server_id.to_string(),
            now: Time(self.now.wall),
            account_statz,
        }))
    }

    /// `subsz`
    pub(super) fn subsz(&self, options: &SubszOptions, part: &Part) -> Reply {
        if !options.test.is_empty() && !tidelock_subject::is_valid_literal(options.test.as_bytes()) {
            return Reply::Fault(
                400,
                format!(
                    "invalid test subject, must be valid publish subject: {}",
                    options.test
                ),
            );
        }
        let shown = self
            .shared
            .accounts
            .iter()
            .filter(|a| options.account.is_empty() || *a.name == *options.account);
        let (offset, limit) = subsz_page(options);
        let list = part.subscriptions.iter().skip(offset).take(limit).cloned();
        Reply::Body(Body::Subsz(Subsz {
            server_id: self.shared.identity.server_id.to_string(),
            now: Time(self.now.wall),
            stats: sublist_stats(shown, part.cached_routes),
            total: part.subscriptions_total as u64,
            offset: offset as u64,
            limit: limit as u64,
            subscriptions_list: list.collect(),
        }))
    }
}

/// The figures of an account, from the traffic of its open connections.
pub(super) fn account_stat(account: &Account, part: &Part) -> AccountStat {
    let mut traffic = account.past.load();
    if let Some(open) = part.traffic.get(&account.id) {
        traffic.add(open);
    }
    let clients = |msgs, bytes| AccountTraffic {
        total: Traffic { msgs, bytes },
        ..AccountTraffic::default()
    };
    let conns = account.connections.load(Ordering::Relaxed);
    AccountStat {
        account: account.name.to_string(),
        name: account.name.to_string(),
        conns,
        leafnodes: 0,
        total_conns: conns,
        num_subscriptions: account.subscriptions.load(Ordering::Relaxed),
        sent: clients(traffic.out_msgs, traffic.out_bytes),
        received: clients(traffic.in_msgs, traffic.in_bytes),
        slow_consumers: account.past.slow_consumers.load(Ordering::Relaxed),
    }
}

fn no_account(name: &str) -> Reply {
    Reply::Fault(400, format!("Account {name} does not exist"))
}

/// Counts of subscriptions. Matches are not counted, since that would cost every publish.
fn sublist_stats<'a>(accounts: impl Iterator<Item = &'a Account>, cached: usize) -> SublistStats {
    let mut stats = SublistStats {
        num_cache: cached as u64,
        ..SublistStats::default()
    };
    for account in accounts {
        let now = account.subscriptions.load(Ordering::Relaxed);
        let ever = account.subscriptions_ever.load(Ordering::Relaxed);
        stats.num_subscriptions += now;
        stats.num_inserts += ever;
        stats.num_removes += ever.saturating_sub(now);
    }
    stats
}
