//! Connecting: address, server, rights, schema, clock, roles. Until all are found good, nothing is written.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use hone_domain::Millis;
use hone_ledger::LedgerError;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use super::clock;
use super::fault::explain_opening;
use super::listener::Listener;
use super::moving::{self, Marking};
use super::roles::{LOCK, Role, Roles, lock_name};
use super::schema::{self, MIGRATIONS};
use super::store::PostgresStore;
use crate::sqlite::{folder_unusable, make_private, take_folder};
use hone_ledger_queries::db::{Connection, Fault};
use hone_ledger_queries::{leases, wishes};

/// Where the ledger is and how it is opened.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:port/database`, with the options of libpq that sqlx knows; behind a pooler that
    /// hands out connections per transaction, `statement-cache-capacity=0`.
    pub url: String,
    /// The schema in that database; a name of lower-case letters, digits and underscores.
    pub schema: String,
    /// Connections that only read; at least 1.
    pub readers: u32,
    /// How long a call waits for a connection, and for the server to answer a new one.
    pub patience_ms: u64,
    /// What this process does alone.
    pub roles: Vec<Role>,
    /// The data folder of the adapters, which belongs to one process at a time.
    pub folder: Option<PathBuf>,
}

impl fmt::Debug for PostgresConfig {
    /// Without the address, which holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("schema", &self.schema)
            .field("roles", &self.roles)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl PostgresConfig {
    /// The schema `hone` of a database, with four readers, five seconds of patience and no roles.
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            schema: "hone".to_owned(),
            readers: 4,
            patience_ms: 5_000,
            roles: Vec::new(),
            folder: None,
        }
    }
}

/// Prepared statements that a connection keeps; those of batches come in many lengths.
const STATEMENTS: usize = 512;

/// The oldest server that is known to do.
const SERVER_MIN: i32 = 15;

/// Clocks that differ by more are refused: leases, sessions and keys end by them.
const SKEW_MAX_MS: Millis = 60_000;

/// Longest wait for another writer, and longest that a writer may do nothing: then the server ends its transaction.
const WRITER_PATIENCE: &str = "30s";

/// What an address says, without a password; and how connections are made.
fn parse(config: &PostgresConfig) -> Result<(String, PgConnectOptions), LedgerError> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if config.schema.is_empty() || !config.schema.chars().all(is_name) {
        return Err(LedgerError::Unusable(format!(
            "{:?} is no name of a schema: lower-case letters, digits and underscores",
            config.schema
        )));
    }
    let is_postgres = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| config.url.starts_with(scheme));
    let parsed = PgConnectOptions::from_str(&config.url);
    let (true, Ok(options)) = (is_postgres, parsed) else {
        return Err(LedgerError::Unusable(
            "store.url is no address of a PostgreSQL database; write postgres://USER:PASSWORD@HOST:PORT/DATABASE"
                .to_owned(),
        ));
    };
    let database = options.get_database().unwrap_or(options.get_username());
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    let shown = format!("{database} at {place}");
    let name = format!("hone, process {}", std::process::id());
    let options = options
        .application_name(&name)
        .options([
            ("search_path", config.schema.as_str()),
            ("lock_timeout", WRITER_PATIENCE),
            ("idle_in_transaction_session_timeout", WRITER_PATIENCE),
            ("tcp_keepalives_idle", "10"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
        ])
        .disable_statement_logging();
    // One that an address asks for is for a pooler.
    let options = match config.url.contains("statement-cache-capacity") {
        true => options,
        false => options.statement_cache_capacity(STATEMENTS),
    };
    Ok((shown, options))
}

/// Who opens a ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opener {
    /// A server, which brings an older schema up to date and takes its roles.
    Server,
    /// Short work, perhaps beside a server.
    Beside,
    /// A move, which also takes part of a ledger.
    Mover,
}

/// Connects and brings the schema up to date.
pub(super) async fn open(
    config: &PostgresConfig,
    opener: Opener,
) -> Result<PostgresStore, LedgerError> {
    let (shown, options) = parse(config)?;
    let owner = match (&config.folder, opener) {
        (Some(folder), Opener::Server) => {
            let made = make_private(folder);
            made.map_err(|error| folder_unusable(folder, &error))?;
            Some(take_folder(folder)?)
        }
        _ => None,
    };
    let opened = open_at(config, opener, options, &shown).await;
    let mut store = opened.map_err(|fault| explain_opening(fault, &shown))?;
    store.owner = Mutex::new(owner);
    Ok(store)
}

async fn open_at(
    config: &PostgresConfig,
    opener: Opener,
    options: PgConnectOptions,
    shown: &str,
) -> Result<PostgresStore, Fault> {
    let roles: &[Role] = match opener {
        Opener::Server | Opener::Mover => &config.roles,
        Opener::Beside => &[],
    };
    // A move leaves what it copied as it is.
    let began = if opener == Opener::Mover { &[] } else { roles };
    let patience = Duration::from_millis(config.patience_ms);
    let connected = tokio::time::timeout(patience, options.connect()).await;
    let mut connection = connected.map_err(|_| sqlx::Error::PoolTimedOut)??;
    let (options, ahead_ms) = check_server(&mut connection, options, shown).await?;
    check_schema(&mut connection, config, opener, shown).await?;
    let held = Roles::take(&options, roles, &config.schema, shown).await?;
    prepare(&mut connection, config, shown).await?;
    let lock: i64 = sqlx::query_scalar(AssertSqlSafe(format!("select {LOCK}")))
        .bind(lock_name(&config.schema, "writes"))
        .fetch_one(&mut connection)
        .await?;
    let older_forgets = begin_anew(&mut connection, began).await?;
    connection.close().await?;
    Ok(PostgresStore {
        shown: shown.to_owned(),
        schema: config.schema.clone(),
        writers: pool(1, patience, &options),
        readers: pool(config.readers.max(1), patience, &options),
        options,
        begin: format!(
            "begin; select pg_advisory_xact_lock({lock}), \
             (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms"
        ),
        ahead_ms: AtomicI64::new(ahead_ms),
        older_forgets,
        roles: held,
        listener: Listener::default(),
        whole_ms: AtomicI64::new(0),
        owner: Mutex::default(),
        planning: tokio::sync::Mutex::default(),
    })
}

fn pool(connections: u32, patience: Duration, options: &PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(patience)
        .test_before_acquire(false)
        .connect_lazy_with(options.clone())
}

fn unusable(text: String) -> Fault {
    Fault::Ledger(LedgerError::Unusable(text))
}

/// Refuses a server that is too old or can only be read, and clocks that differ. Returns how connections are made that
/// keep what they acknowledge, and how far the database's clock is ahead.
async fn check_server(
    connection: &mut PgConnection,
    options: PgConnectOptions,
    shown: &str,
) -> Result<(PgConnectOptions, Millis), Fault> {
    let (version, encoding, synchronous, is_standby, database_ms): (i32, String, String, bool, i64) =
        sqlx::query_as(
            "select current_setting('server_version_num')::int / 10000, current_setting('server_encoding'),
                    current_setting('synchronous_commit'), pg_is_in_recovery(),
                    (extract(epoch from clock_timestamp()) * 1000)::bigint",
        )
        .fetch_one(connection)
        .await?;
    if version < SERVER_MIN {
        return Err(unusable(format!(
            "the server of the database {shown} is PostgreSQL {version}; {SERVER_MIN} or newer is needed"
        )));
    }
    if encoding != "UTF8" {
        return Err(unusable(format!(
            "the database {shown} has the encoding {encoding}; make one with `createdb --encoding UTF8`"
        )));
    }
    if is_standby {
        return Err(unusable(format!(
            "the database {shown} can only be read; name the primary server in store.url, not a standby"
        )));
    }
    let ahead = clock::ahead_ms(database_ms);
    if ahead.abs() > SKEW_MAX_MS {
        let (seconds, side) = (
            ahead.abs() / 1_000,
            if ahead > 0 { "behind" } else { "ahead of" },
        );
        return Err(unusable(format!(
            "the clock of this machine is {seconds} s {side} that of the database {shown}; set both \
             (timedatectl set-ntp true)"
        )));
    }
    // What was acknowledged must be on disk.
    let options = match synchronous.as_str() {
        "off" => options.options([("synchronous_commit", "on")]),
        _ => options,
    };
    Ok((options, ahead))
}

/// Refuses a schema of another program or of a newer one.
async fn check_schema(
    connection: &mut PgConnection,
    config: &PostgresConfig,
    opener: Opener,
    shown: &str,
) -> Result<(), Fault> {
    let (schema, known) = (&config.schema, known_version());
    let (tables, is_ours): (i64, bool) = sqlx::query_as(
        "select count(*), coalesce(bool_or(relname = '_sqlx_migrations'), false) from pg_class
         where relnamespace = to_regnamespace($1) and relkind = 'r'",
    )
    .bind(schema)
    .fetch_one(&mut *connection)
    .await?;
    if !is_ours && tables > 0 {
        return Err(unusable(format!(
            "the schema {schema} of the database {shown} belongs to another program; name another database in store.url"
        )));
    }
    if !is_ours {
        return Ok(());
    }
    if opener != Opener::Mover && moving::marking(connection, schema).await? == Marking::Moving {
        return Err(unusable(format!(
            "the ledger {shown} is half moved; run `hone ledger move` again, or remove the half with `drop schema {schema} \
             cascade`"
        )));
    }
    let found: i64 = sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations")
        .fetch_one(connection)
        .await?;
    if found > known {
        return Err(unusable(format!(
            "the ledger {shown} was written by a newer hone (its schema is version {found}, this program knows {known}); \
             start that version or a newer one"
        )));
    }
    if found < known && opener == Opener::Beside {
        return Err(unusable(format!(
            "the ledger {shown} has the schema of an older hone (version {found}, this program knows {known}); use the \
             program that runs, or restart the server with this one first"
        )));
    }
    Ok(())
}

/// The newest schema this program can read.
fn known_version() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// Makes the schema and brings it up to date.
async fn prepare(
    connection: &mut PgConnection,
    config: &PostgresConfig,
    shown: &str,
) -> Result<(), Fault> {
    let is_there: bool = sqlx::query_scalar("select to_regnamespace($1) is not null")
        .bind(&config.schema)
        .fetch_one(&mut *connection)
        .await?;
    if !is_there {
        // The name has no character that means anything else.
        let sql = format!("create schema if not exists {}", config.schema);
        sqlx::query(AssertSqlSafe(sql))
            .execute(&mut *connection)
            .await?;
    }
    MIGRATIONS
        .run(&mut *connection)
        .await
        .map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Fault::Sql(error),
            other => unusable(format!(
                "the schema of the ledger {shown} does not fit this program ({other}); start the version of hone that \
                 wrote it or a newer one"
            )),
        })?;
    let missing = schema::missing(connection, &config.schema).await?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(unusable(format!(
        "the ledger {shown} lacks {}, which another program must have removed; restore a backup",
        missing.join(", ")
    )))
}

/// Ends what the holders of this process's roles left open; returns the number of the newest wish to be forgotten.
async fn begin_anew(connection: &mut PgConnection, roles: &[Role]) -> Result<i64, Fault> {
    let mut transaction = connection.begin().await?;
    let inside = &mut Connection::Postgres(&mut transaction);
    let newest = wishes::newest(inside).await?;
    for consumer in roles.iter().filter_map(|role| role.consumer()) {
        leases::free_all(inside, consumer).await?;
    }
    transaction.commit().await?;
    Ok(newest)
}
