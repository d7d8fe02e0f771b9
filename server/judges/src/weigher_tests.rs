//! The built-in model weighs hints: what the engine says is what a plain forward says, of the weights
//! that serve, and the verdict keeps the hint that they agree with most.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hone_blobs::FsBlobs;
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_domain::{
    Ask, BlobKey, Blobs, Collect, Delta, Digest, Message, NextState, Policies, Policy,
    PolicyVersion, Role, Sampling, Scope, StopRules, Token, Transition, TransitionId, Turn,
};
use hone_inference::ModelLanguage;
use hone_judge::{
    Compared, CompleteOptions, Completed, Completer, CompleterError, Config, Ctx, ModelConfig,
    Weigher,
};
use hone_kernels::Executor;
use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_nn::{Adapter, Model, load_model, peft, score};
use hone_runtime::{
    Ids as _, Latest, Notification, Overflow, ShutdownTrigger, StatusRegistry, SystemClock,
    SystemIds, queue,
};
use hone_serve::{Backend as _, Engine, ServeCtx};
use hone_text::folder::ModelFolder;
use hone_train::{hint_words, hinted_prompt};
use tempfile::TempDir;

use super::super::base::{BaseParts, ask};
use super::{Served, Words};

const TEMPLATE: &str = " {hint}";
const COMPARED: Compared = Compared {
    top_k: 4,
    tokens_max: 24,
};

struct World {
    engine: Arc<Engine>,
    parts: BaseParts,
    model: Arc<Model>,
    executor: Arc<Executor>,
    policies: Latest<Policies>,
    blobs: Arc<dyn Blobs>,
    folder: TempDir,
}

fn world() -> World {
    let files = ModelFolder::embedded(hone_starter::model_files()).unwrap();
    let model = load_model(files.checkpoint(), &mut |_, _, _| {}).unwrap();
    let (model, executor) = (Arc::new(model), Arc::new(Executor::new(2)));
    let language = ModelLanguage {
        tokenizer: files.tokenizer(),
        template: files.template(),
        defaults: Sampling::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(&folder.path().join("blobs"), 1 << 30).unwrap();
    let blobs: Arc<dyn Blobs> = Arc::new(blobs);
    let policies = Latest::new(Policies::default());
    let engine = Engine::start(ServeCtx {
        model: model.clone(),
        tokenizer: files.tokenizer(),
        executor: executor.clone(),
        device: None,
        end_tokens: files.generation().eos_ids.clone(),
        blobs: blobs.clone(),
        policies: policies.reader(),
        clock: Arc::new(SystemClock::default()),
        config: hone_serve::Config::for_tests(),
        registry: StatusRegistry::new(),
    });
    let engine = Arc::new(engine.unwrap());
    let parts = BaseParts {
        backend: engine.clone(),
        language: Arc::new(language),
        ids: Arc::new(SystemIds),
        clock: Arc::new(SystemClock::default()),
    };
    World {
        engine,
        parts,
        model,
        executor,
        policies,
        blobs,
        folder,
    }
}

impl World {
    /// A turn that the engine really answered.
    async fn turn(&self, question: &str) -> Turn {
        let messages = vec![Message::text(Role::User, question)];
        let wording = Words(self.parts.language.clone());
        let text = hone_train::Wording::render(&wording, &messages).unwrap();
        let mut asked = Ask {
            collect: Collect::Yes,
            stop: StopRules {
                max_tokens: 32,
                ignore_end: true,
                ..StopRules::default()
            },
            ..ask(
                &self.parts,
                Scope::of("ann", None),
                self.parts.language.encode(&text, false),
            )
        };
        asked.context.messages = messages.into();
        asked.context.owner = "ann".to_owned();
        asked.kind = hone_domain::TurnKind::Main;
        asked.origin = hone_domain::Origin::User;
        let mut answer = self.engine.ask(asked).unwrap();
        while let Some(delta) = answer.deltas.recv().await {
            if let Delta::End(end) = delta {
                return *end.turn.unwrap();
            }
        }
        panic!("the engine broke off");
    }

    fn publish(&self, adapter: &Adapter) {
        let digest = Digest(adapter.digest());
        let blob = BlobKey::new(format!("adapters/{}", digest.to_hex())).unwrap();
        let files = peft::to_files(adapter, "tiny", &serde_json::json!({}));
        self.blobs.put(&blob, &files).unwrap();
        let policy = Policy {
            scope: Scope::of("ann", None),
            version: PolicyVersion(1),
            digest,
            blob,
        };
        self.policies.update(|policies| policies.with(policy));
    }

    /// The likeliest tokens along the completion, by the plain forward.
    fn plain(&self, adapter: Option<&Adapter>, prompt: &[Token], turn: &Turn) -> Vec<Vec<Token>> {
        let given = &turn.completion.tokens()[..COMPARED.tokens_max];
        let text = [prompt, given].concat();
        let scores = score(&self.model, adapter, &text, &self.executor);
        let place = |at: usize| {
            let row = scores.logits(prompt.len() + at);
            let mut ids: Vec<usize> = (0..row.len()).collect();
            ids.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let likeliest = ids[..usize::from(COMPARED.top_k)].iter();
            likeliest.map(|id| *id as Token).collect()
        };
        (0..given.len()).map(place).collect()
    }

    /// What the weigher should say of each hint.
    fn reference(&self, adapter: Option<&Adapter>, turn: &Turn, hints: &[String]) -> Vec<f32> {
        let untold = self.plain(adapter, &turn.prompt_tokens, turn);
        let wording = Words(self.parts.language.clone());
        let share = |hint: &String| {
            let prompt = hinted_prompt(&wording, turn, &hint_words(TEMPLATE, hint)).unwrap();
            let told = self.plain(adapter, &prompt, turn);
            let pairs = untold.iter().zip(&told);
            let shared: usize = pairs
                .map(|(a, b)| a.iter().filter(|id| b.contains(id)).count())
                .sum();
            shared as f32 / (untold.len() * usize::from(COMPARED.top_k)) as f32
        };
        hints.iter().map(share).collect()
    }
}

fn hints() -> Vec<String> {
    let hints = [
        "Zinc walks nine purple ledgers under Tuesday's ninth horse, 7 7 7 7 7 7 7 7.",
        "Keep it short, please.",
    ];
    hints.map(str::to_owned).to_vec()
}

fn lora() -> LoraConfig {
    LoraConfig {
        rank: 4,
        alpha: 8.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_those_of_the_weights_that_serve() {
    let world = world();
    let turn = world.turn("What is the capital of France?").await;
    let weigher = Served::new(world.parts.clone(), TEMPLATE);
    let by_base = weigher.weigh(&turn, &hints(), COMPARED).await.unwrap();
    assert_eq!(by_base, world.reference(None, &turn, &hints()));
    assert_ne!(by_base[0], by_base[1], "there is something to choose");
    let adapter = Adapter::random(&world.model.config, lora(), 2);
    world.publish(&adapter);
    let taught = world.reference(Some(&adapter), &turn, &hints());
    assert_ne!(taught, by_base, "another version thinks otherwise");
    for _ in 0..2_000 {
        let weighed = weigher.weigh(&turn, &hints(), COMPARED).await;
        match weighed {
            Ok(shares) if shares == taught => return,
            Ok(shares) => assert_eq!(shares, by_base, "until the adapter serves"),
            Err(why) => assert!(why.contains("a newer version"), "{why}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the adapter never served");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_weighed_says_why() {
    let world = world();
    let turn = world.turn("What is the capital of France?").await;
    let weigher = Served::new(world.parts.clone(), TEMPLATE);
    let strange = Turn {
        base: Digest([9; 32]),
        ..turn.clone()
    };
    let unlike = Turn {
        messages: vec![Message::text(Role::System, "only this")],
        ..turn.clone()
    };
    for (turn, part) in [(&strange, "another model"), (&unlike, "recorded prompt")] {
        let why = weigher.weigh(turn, &hints(), COMPARED).await.unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    world.engine.stop(Duration::ZERO);
    let why = weigher.weigh(&turn, &hints(), COMPARED).await.unwrap_err();
    assert_eq!(why, "the engine is stopping");
}

/// Votes "bad", each with the next hint.
struct Votes(AtomicUsize);

#[async_trait]
impl Completer for Votes {
    async fn complete(
        &self,
        _: &[Message],
        _: CompleteOptions,
    ) -> Result<Completed, CompleterError> {
        let at = self.0.fetch_add(1, Ordering::Relaxed);
        let hint = &hints()[at % 2];
        let words = format!("HINT_START {hint} HINT_END \\boxed{{-1}}");
        Ok(Completed::from(words.as_str()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_keeps_the_hint_with_the_larger_share() {
    let world = world();
    let turn = world.turn("What is the capital of France?").await;
    let shares = world.reference(None, &turn, &hints());
    let sqlite = SqliteConfig::in_folder(world.folder.path());
    let ledger = Arc::new(SqliteStore::open(&sqlite).await.unwrap());
    ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let transition = Transition {
        id: TransitionId(SystemIds.next()),
        turn: turn.id,
        session: turn.session,
        scope: turn.scope.clone(),
        next_state: NextState::from_messages(&[Message::text(
            Role::User,
            "Hm, and what about Mars?",
        )]),
        next_turn: None,
        settled_ms: 1,
    };
    ledger.record_transitions(&[transition]).await.unwrap();
    let model = ModelConfig {
        hint_tokens_max: COMPARED.tokens_max,
        vote_deadline_ms: 60_000,
        ..ModelConfig::for_tests()
    };
    let ctx = Ctx {
        ledger: ledger.clone(),
        completer: Some(Arc::new(Votes(AtomicUsize::new(0)))),
        weigher: super::super::weigher(&model, TEMPLATE, Some(world.parts.clone())),
        reader: None,
        caller: None,
        ids: Arc::new(SystemIds),
        clock: Arc::new(SystemClock::default()),
        config: Config {
            lease_ms: 200_000,
            model: Some(model),
            ..Config::for_tests()
        },
        registry: StatusRegistry::new(),
    };
    let (notify, inbox) = queue(1, Overflow::DropOldest);
    let (to_train, _notified) = queue(1, Overflow::DropOldest);
    let stop = ShutdownTrigger::new();
    let running = tokio::spawn(hone_judge::run(ctx, inbox, to_train, stop.signal()));
    notify.send(Notification).unwrap();
    let verdict = loop {
        let view = ledger.turn(turn.id).await.unwrap().unwrap();
        if let Some(verdict) = view.verdict {
            break verdict;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    stop.pull();
    running.await.unwrap().unwrap();
    let choice = verdict.hint_choice.unwrap();
    let by = hone_domain::ChosenBy::Agreement;
    assert_eq!(choice.by, by, "{}", choice.reason);
    // Votes come in any order.
    for candidate in &choice.candidates {
        let at = hints().iter().position(|hint| *hint == candidate.hint);
        assert_eq!(candidate.agreement, Some(shares[at.unwrap()]));
    }
    let best = usize::from(shares[1] > shares[0]);
    assert_eq!(verdict.hint, Some(hints()[best].clone()));
}
