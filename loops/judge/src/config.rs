//! Settings of the judge.

use hone_domain::Verifier;
use serde::{Deserialize, Serialize};

use crate::certificate::PayConfig;
use crate::decide::MovingOn;
use crate::verify::{Rule, Rules};

/// What decides where a check of the completion can tell and a model could vote as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// The check alone.
    First,
    /// Both: the mean of the check's score (the outcome) and the mean of the votes (the step).
    Mean,
}

/// Settings of the judge; the defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Most transitions claimed at once.
    pub claim_batch: usize,
    /// Most transitions being judged at once.
    pub in_hand_max: usize,
    /// How long a claim lasts. A judge that dies gives its transitions back after this time.
    pub lease_ms: u64,
    /// How often the ledger is asked for work that no notification announced.
    pub tick_ms: u64,
    /// Claims of one transition without a verdict after which it is given up (`judge_failed`). Under
    /// the last of them it is decided without the votes and checks that did not come in time.
    pub attempts_max: u32,
    /// First pause after a ledger failure; doubles with each further one.
    pub retry_ms_min: u64,
    /// Longest pause after ledger failures.
    pub retry_ms_max: u64,
    /// How long finishing may take after the stop began.
    pub drain_ms: u64,
    /// What it means when a person goes on without a word about the completion.
    pub moving_on: MovingOn,
    /// What decides where a check can tell and a model could vote as well.
    pub combine: Combine,
    /// Checks of the configuration, and which turns they are for.
    pub verifiers: Vec<Rule>,
    /// Most callbacks and certificates under way at once.
    pub checks_in_flight_max: usize,
    /// What certificates are worth.
    pub certificate: PayConfig,
    /// How replies are read by the served base model.
    pub reading: ReadingConfig,
    /// The model that votes; leave the table out to judge by feedback and rules alone.
    pub model: Option<ModelConfig>,
}

/// How replies are read by the served base model.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReadingConfig {
    /// Whether they are.
    pub enabled: bool,
    /// Share of what is read that has to be right, from 0 to 1, in cross-validation.
    pub precision_min: f64,
    /// Most tokens of a reply and what it answers; a longer one is left to the rules.
    pub tokens_max: usize,
}

/// Who votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// A model behind one or several OpenAI-compatible servers.
    Endpoint,
    /// The served base model, without any adapter, through the engine's own line, behind users.
    Base,
    /// A model of its own in this process, which never learns.
    Local,
}

/// What chooses where several votes bring a hint that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HintRule {
    /// The policy that would learn from it, where it is served here: the hint under which most of
    /// its likeliest tokens stay what they are. Otherwise the first.
    Agreement,
    /// The first of the votes that decided.
    First,
}

/// Settings of a local judge.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LocalConfig {
    /// Its folder (config.json, safetensors, tokenizer.json) or GGUF file.
    pub path: String,
    /// Threads it computes with.
    pub threads: usize,
    /// Most tokens of prompt and vote together; bounds its memory.
    pub tokens_max: usize,
    /// Most votes that wait for it.
    pub waiting_max: usize,
}

/// Settings of the model judge.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Who votes.
    pub kind: ModelKind,
    /// Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`.
    pub url: String,
    /// Further servers with the same model.
    pub urls: Vec<String>,
    /// Name of the model there; stored with each vote.
    pub name: String,
    /// Folder with prompts of one's own; empty takes the built-in ones.
    pub prompts: String,
    /// A model of this process, for `kind = "local"`.
    pub local: LocalConfig,
    /// How often a vote's servers are tried within its deadline.
    pub tries_max: u32,
    /// Pause after all servers failed; doubles with each further time.
    pub retry_ms: u64,
    /// How often each server is asked whether it is well; 0 never asks.
    pub health_interval_ms: u64,
    /// Price of a million tokens read.
    pub price_prompt: f64,
    /// Price of a million tokens written.
    pub price_completion: f64,
    /// Environment variable that holds the key, where the server wants one.
    pub api_key_env: Option<String>,
    /// Votes per transition; a strict majority of them decides.
    pub votes: usize,
    /// How long one vote may take before it abstains.
    pub vote_deadline_ms: u64,
    /// Most votes under way at once.
    pub votes_in_flight_max: usize,
    /// Sampling temperature of a vote.
    pub temperature: f32,
    /// Most tokens of a vote.
    pub max_tokens: u32,
    /// Votes failing in a row after which the model is left alone for a while.
    pub breaker_failures: u32,
    /// How long it is left alone; the signal abstains meanwhile.
    pub breaker_open_ms: u64,
    /// How long a certificate may take before it abstains.
    pub certificate_deadline_ms: u64,
    /// Most tokens of a certificate.
    pub certificate_tokens_max: u32,
    /// Most characters of the conversation shown to the model.
    pub context_chars_max: usize,
    /// Most characters of the completion shown to the model.
    pub completion_chars_max: usize,
    /// Most characters of the next state shown to the model.
    pub next_state_chars_max: usize,
    /// Most characters of a vote's words that are stored.
    pub words_chars_max: usize,
    /// Shorter hints are not hints.
    pub hint_chars_min: usize,
    /// Longer hints are not hints.
    pub hint_chars_max: usize,
    /// What chooses where several votes bring a hint that can be kept.
    pub hint_choice: HintRule,
    /// Most hints to choose from.
    pub hint_candidates_max: usize,
    /// Likeliest tokens at each place of the completion that are compared.
    pub hint_top_k: u8,
    /// Most tokens of the completion that are compared, from its start.
    pub hint_tokens_max: usize,
}

fn at_least_one(pairs: &[(&str, u64)]) -> Result<(), String> {
    match pairs.iter().find(|(_, value)| *value == 0) {
        Some((key, _)) => Err(format!("{key} must be at least 1")),
        None => Ok(()),
    }
}

impl Config {
    /// Checks what types cannot; the message names the key.
    pub fn validate(&self) -> Result<(), String> {
        at_least_one(&[
            ("judge.claim_batch", self.claim_batch as u64),
            ("judge.in_hand_max", self.in_hand_max as u64),
            ("judge.lease_ms", self.lease_ms),
            ("judge.tick_ms", self.tick_ms),
            ("judge.attempts_max", u64::from(self.attempts_max)),
            ("judge.retry_ms_min", self.retry_ms_min),
        ])?;
        if self.retry_ms_max < self.retry_ms_min {
            return Err("judge.retry_ms_max must not be below judge.retry_ms_min".to_owned());
        }
        if !(0.5..=1.0).contains(&self.reading.precision_min) {
            return Err("judge.reading.precision_min must lie between 0.5 and 1".to_owned());
        }
        at_least_one(&[("judge.reading.tokens_max", self.reading.tokens_max as u64)])?;
        self.validate_checks()?;
        self.model
            .as_ref()
            .map_or(Ok(()), |m| m.validate(self.lease_ms))
    }

    /// Every callback: its name, address, and the variable of its secret.
    pub fn callbacks(&self) -> Vec<(&str, &str, &str)> {
        let rules = self.verifiers.iter().filter_map(|rule| match &rule.check {
            Verifier::Callback {
                url, secret_env, ..
            } => Some((rule.name.as_str(), url.as_str(), secret_env.as_str())),
            _ => None,
        });
        let execute = self.certificate.execute.iter().map(|execute| {
            let (url, secret) = (execute.url.as_str(), execute.secret_env.as_str());
            ("judge.certificate.execute", url, secret)
        });
        rules.chain(execute).collect()
    }

    fn validate_checks(&self) -> Result<(), String> {
        Rules::new(&self.verifiers)?;
        at_least_one(&[(
            "judge.checks_in_flight_max",
            self.checks_in_flight_max as u64,
        )])?;
        for rule in &self.verifiers {
            if let Verifier::Callback { deadline_ms, .. } = rule.check
                && deadline_ms * 2 > self.lease_ms
            {
                return Err(format!(
                    "judge.lease_ms must be at least twice the deadline_ms of judge.verifiers {:?}",
                    rule.name
                ));
            }
        }
        self.validate_certificate()
    }

    fn validate_certificate(&self) -> Result<(), String> {
        let pay = &self.certificate;
        if let Some(execute) = &pay.execute {
            at_least_one(&[("judge.certificate.execute.deadline_ms", execute.deadline_ms)])?;
            let model = self.model.as_ref();
            let before_ms = model.map_or(0, |m| m.certificate_deadline_ms);
            let both_ms = before_ms.saturating_add(execute.deadline_ms);
            if both_ms > self.lease_ms - self.lease_ms / 4 {
                return Err(format!(
                    "judge.certificate.execute.deadline_ms and judge.model.certificate_deadline_ms \
                     must together be at most three quarters of judge.lease_ms, or what is executed \
                     could come too late to count: they are {both_ms} of {}",
                    self.lease_ms
                ));
            }
        }
        let shares = [
            ("audit_share", pay.audit_share),
            ("precision_min", pay.precision_min),
        ];
        match shares
            .iter()
            .find(|(_, share)| !(0.0..=1.0).contains(share))
        {
            Some((key, _)) => Err(format!("judge.certificate.{key} must be between 0 and 1")),
            None => Ok(()),
        }
    }

    /// Settings for tests of this crate and of the ring: small numbers, rules only.
    #[cfg(any(test, feature = "test-switches"))]
    pub fn for_tests() -> Self {
        Self {
            claim_batch: 4,
            in_hand_max: 8,
            lease_ms: 10_000,
            tick_ms: 100,
            attempts_max: 3,
            retry_ms_min: 10,
            retry_ms_max: 80,
            drain_ms: 1_000,
            moving_on: MovingOn::Abstain,
            combine: Combine::First,
            verifiers: Vec::new(),
            checks_in_flight_max: 8,
            certificate: PayConfig::default(),
            reading: ReadingConfig {
                enabled: true,
                precision_min: 0.9,
                tokens_max: 512,
            },
            model: None,
        }
    }
}

impl ModelConfig {
    fn validate(&self, lease_ms: u64) -> Result<(), String> {
        at_least_one(&[
            ("judge.model.votes", self.votes as u64),
            ("judge.model.vote_deadline_ms", self.vote_deadline_ms),
            (
                "judge.model.votes_in_flight_max",
                self.votes_in_flight_max as u64,
            ),
            ("judge.model.max_tokens", u64::from(self.max_tokens)),
            (
                "judge.model.certificate_deadline_ms",
                self.certificate_deadline_ms,
            ),
            (
                "judge.model.certificate_tokens_max",
                u64::from(self.certificate_tokens_max),
            ),
            (
                "judge.model.breaker_failures",
                u64::from(self.breaker_failures),
            ),
            (
                "judge.model.completion_chars_max",
                self.completion_chars_max as u64,
            ),
            (
                "judge.model.next_state_chars_max",
                self.next_state_chars_max as u64,
            ),
            (
                "judge.model.hint_candidates_max",
                self.hint_candidates_max as u64,
            ),
            ("judge.model.hint_top_k", u64::from(self.hint_top_k)),
            ("judge.model.hint_tokens_max", self.hint_tokens_max as u64),
        ])?;
        if self.vote_deadline_ms * 2 > lease_ms {
            return Err(
                "judge.lease_ms must be at least twice judge.model.vote_deadline_ms, or a claim \
                 could run out while its votes are under way"
                    .to_owned(),
            );
        }
        if self.certificate_deadline_ms * 2 > lease_ms {
            return Err(
                "judge.lease_ms must be at least twice judge.model.certificate_deadline_ms"
                    .to_owned(),
            );
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            return Err("judge.model.temperature must be between 0 and 2".to_owned());
        }
        self.validate_kind()
    }

    fn validate_kind(&self) -> Result<(), String> {
        if self.name.is_empty() {
            return Err("judge.model.name must not be empty".to_owned());
        }
        at_least_one(&[
            ("judge.model.tries_max", u64::from(self.tries_max)),
            ("judge.model.retry_ms", self.retry_ms),
            ("judge.model.local.threads", self.local.threads as u64),
            ("judge.model.local.tokens_max", self.local.tokens_max as u64),
            (
                "judge.model.local.waiting_max",
                self.local.waiting_max as u64,
            ),
        ])?;
        let prices = [self.price_prompt, self.price_completion];
        if !prices
            .iter()
            .all(|price| *price >= 0.0 && price.is_finite())
        {
            return Err(
                "judge.model.price_prompt and judge.model.price_completion must not be below 0"
                    .to_owned(),
            );
        }
        match self.kind {
            ModelKind::Endpoint if self.servers().next().is_none() => {
                Err("judge.model.url or judge.model.urls must name a server".to_owned())
            }
            ModelKind::Local if self.local.path.is_empty() => Err(
                "judge.model.local.path must name a folder or a GGUF file where judge.model.kind is \"local\""
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    /// Every server, each with the key that names it.
    pub fn servers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let first = std::iter::once(("judge.model.url", self.url.as_str()));
        let further = self.urls.iter();
        let further = further.map(|url| ("judge.model.urls", url.as_str()));
        first.chain(further).filter(|(_, url)| !url.is_empty())
    }

    /// Settings for tests: three votes, small limits.
    #[cfg(any(test, feature = "test-switches"))]
    pub fn for_tests() -> Self {
        Self {
            kind: ModelKind::Endpoint,
            url: "http://127.0.0.1:9/v1".to_owned(),
            urls: Vec::new(),
            prompts: String::new(),
            local: LocalConfig {
                path: String::new(),
                threads: 1,
                tokens_max: 4_096,
                waiting_max: 4,
            },
            tries_max: 2,
            retry_ms: 10,
            health_interval_ms: 0,
            price_prompt: 0.0,
            price_completion: 0.0,
            name: "test-judge".to_owned(),
            api_key_env: None,
            votes: 3,
            vote_deadline_ms: 1_000,
            votes_in_flight_max: 6,
            temperature: 0.6,
            max_tokens: 256,
            breaker_failures: 4,
            breaker_open_ms: 5_000,
            certificate_deadline_ms: 2_000,
            certificate_tokens_max: 4_096,
            context_chars_max: 2_000,
            completion_chars_max: 2_000,
            next_state_chars_max: 2_000,
            words_chars_max: 400,
            hint_chars_min: 10,
            hint_chars_max: 400,
            hint_choice: HintRule::Agreement,
            hint_candidates_max: 3,
            hint_top_k: 4,
            hint_tokens_max: 512,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Execute;

    fn execute(config: &mut Config, deadline_ms: u64) {
        config.certificate.execute = Some(Execute {
            url: "http://127.0.0.1:9/".to_owned(),
            secret_env: "SECRET".to_owned(),
            deadline_ms,
        });
    }

    #[test]
    fn wrong_settings_are_named() {
        type Change = fn(&mut Config);
        let cases: [(Change, &str); 8] = [
            (
                |c| c.claim_batch = 0,
                "judge.claim_batch must be at least 1",
            ),
            (|c| c.retry_ms_max = 1, "judge.retry_ms_max"),
            (
                |c| (c.lease_ms, c.certificate.execute) = (1_500, None),
                "judge.lease_ms must be at least twice",
            ),
            (
                |c| {
                    if let Some(model) = &mut c.model {
                        model.temperature = f32::NAN;
                    }
                },
                "judge.model.temperature",
            ),
            (
                |c| {
                    if let Some(model) = &mut c.model {
                        model.url.clear();
                    }
                },
                "judge.model.url or judge.model.urls",
            ),
            (
                |c| {
                    if let Some(model) = &mut c.model {
                        model.kind = ModelKind::Local;
                    }
                },
                "judge.model.local.path",
            ),
            (
                |c| execute(c, 0),
                "judge.certificate.execute.deadline_ms must be at least 1",
            ),
            (
                |c| execute(c, 5_501),
                "judge.certificate.execute.deadline_ms and judge.model.certificate_deadline_ms must",
            ),
        ];
        for (change, message) in cases {
            let mut config = Config::for_tests();
            config.model = Some(ModelConfig::for_tests());
            execute(&mut config, 5_500);
            assert_eq!(config.validate(), Ok(()));
            change(&mut config);
            let error = config.validate().expect_err("it is wrong");
            assert!(error.starts_with(message), "{error}");
        }
    }
}
