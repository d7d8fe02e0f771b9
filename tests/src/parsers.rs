//! Parsers of outside bytes, each as one function that takes any bytes and panics where a promise is
//! broken. `tests/it/corpora.rs` feeds them.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hone::config::{Config, Sources};
use hone_accounts::OidcConfig;
use hone_accounts::oidc::Tokens;
use hone_api_types::anthropic::MessagesRequest;
use hone_api_types::content::{Reader, hide};
use hone_api_types::messages::parse_messages;
use hone_api_types::openai::ChatRequest;
use hone_api_types::responses::{ResponsesRequest, Stored};
use hone_api_types::tools::Offer;
use hone_api_types::{JsonObject, RequestError, skill_tar};
use hone_checkpoint::TensorFiles;
use hone_checkpoint::{ModelConfig, TensorSource};
use hone_domain::{
    CallStyle, OutputFormat, OutputParser, ParsedOutput, Reasoning, SKILL_BYTES_MAX, SkillFile,
    SkillFolder, Span, scan,
};
use hone_inference::BindingConfig;
use hone_net::outbound::Outbound;
use hone_nn::peft;
use hone_replies::error::ApiError;
use hone_replies::sse;
use hone_text::folder::ModelFolder;
use hone_text::template::ChatTemplate;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Map, Value, json};

/// A parser by the name of its corpus.
pub type Parser = (&'static str, fn(&[u8]));

/// All of them.
pub const PARSERS: [Parser; 8] = [
    ("chat_body", chat_body),
    ("sse", sse_event),
    ("jwt", jwt),
    ("template", template),
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("tool_calls", tool_calls),
    ("skill", skill),
];

/// Longest input: what is longer says nothing new and takes long.
const BYTES_MAX: usize = 64 * 1024;

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let sources = Sources {
        file: None,
        env: Vec::new(),
        flags: Vec::new(),
    };
    Config::load(&sources).expect("the defaults are sound")
});

/// A refusal that clients can read: a message, a class, and a body that is JSON.
fn refused(error: &ApiError) {
    let body = error.body();
    assert!(!body.error.message.is_empty(), "{error:?}");
    let status = error.class().0;
    assert!(status.is_client_error(), "{error:?} is {status}");
    serde_json::to_string(&body).expect("a body is JSON");
}

/// Bodies of the three conversation APIs.
pub fn chat_body(data: &[u8]) {
    let data = &data[..data.len().min(BYTES_MAX)];
    let steps: [fn(JsonObject) -> Result<(), RequestError>; 3] = [chat, responses, messages];
    for step in steps {
        if let Err(error) = JsonObject::parse(data).and_then(step) {
            refused(&ApiError::from(error));
        }
    }
}

const MESSAGES_MAX: usize = 64;

fn binding() -> &'static BindingConfig {
    &CONFIG.binding
}

fn chat(object: JsonObject) -> Result<(), RequestError> {
    let (body, _) = ChatRequest::from_object(object)?;
    body.session
        .resolve(&axum::http::HeaderMap::new(), binding())?;
    let mut reader = Reader::default();
    let mut parsed = parse_messages(&body.chat.messages, MESSAGES_MAX, &mut reader)?;
    assert!((1..=MESSAGES_MAX).contains(&parsed.len()));
    hide(&mut parsed, &binding().unshown, &mut reader);
    body.sampling.stops()?;
    let shape = body.shape.shape()?;
    let tools = body.chat.functions(&mut reader)?.tools;
    let choice = body.chat.tool_choice.as_ref();
    let offer = Offer::of(&tools, choice, body.chat.parallel_tool_calls)?;
    if let Some(offer) = offer {
        offer.shape(Some(CallStyle::Tags), shape)?;
    }
    Ok(())
}

fn responses(object: JsonObject) -> Result<(), RequestError> {
    let (body, _) = ResponsesRequest::from_object(object)?;
    body.session
        .resolve(&axum::http::HeaderMap::new(), binding())?;
    let mut reader = Reader::default();
    body.messages(MESSAGES_MAX, (&mut reader, &Stored::new()))?;
    body.wishes()?;
    body.functions(&mut reader)?;
    body.choice();
    body.shape_fields().shape().map(drop)
}

fn messages(object: JsonObject) -> Result<(), RequestError> {
    let (body, _) = MessagesRequest::from_object(object)?;
    body.session
        .resolve(&axum::http::HeaderMap::new(), binding())?;
    let mut reader = Reader::default();
    body.messages(MESSAGES_MAX, &mut reader)?;
    body.wishes()?;
    body.functions(&mut reader)?;
    body.chat_choice()?;
    body.shape_fields().shape().map(drop)
}

/// What an event carries comes out as it went in, on one line, whatever it spells.
pub fn sse_event(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    for event in [
        sse::event(&value),
        sse::named_event(Some("message"), &value),
        sse::numbered_event("status", 7, &value),
    ] {
        let event = std::str::from_utf8(&event).expect("events are text");
        let lines = event
            .strip_suffix("\n\n")
            .expect("an event ends with an empty line");
        assert!(
            !lines.contains("\n\n") && !lines.contains('\r'),
            "{lines:?}"
        );
        let mut carried = lines.lines().filter_map(|line| line.strip_prefix("data: "));
        let carried = (carried.next(), carried.next());
        let (Some(only), None) = carried else {
            panic!("an event has one line of data: {lines:?}")
        };
        let back: Value = serde_json::from_str(only).expect("data is JSON");
        assert_eq!(back, value);
    }
}

/// Tokens of a provider whose one key is known here.
struct Provider {
    pair: EcdsaKeyPair,
    tokens: Tokens,
    runtime: tokio::runtime::Runtime,
}

impl Provider {
    fn new() -> Self {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let secret = EcdsaKeyPair::generate_pkcs8(kind, &random).expect("a key can be made");
        let pair = EcdsaKeyPair::from_pkcs8(kind, secret.as_ref(), &random);
        let pair = pair.expect("a key that was just made is sound");
        let config = OidcConfig {
            issuer: "https://id.example".to_owned(),
            audience: "hone".to_owned(),
            jwks_url: "http://127.0.0.1:9/keys".to_owned(),
            algorithms: vec!["ES256".to_owned()],
            owner_claim: "sub".to_owned(),
            role_claim: "hone_role".to_owned(),
            role: "user".to_owned(),
            refresh_ms: i64::MAX / 4,
            refetch_ms: i64::MAX / 4,
        };
        hone_net::outbound::install_tls();
        let outbound = Outbound::new(&CONFIG.outbound).expect("the defaults are sound");
        let tokens = Tokens::new(config, Arc::new(outbound)).expect("the provider is sound");
        let point = pair.public_key().as_ref();
        let key = json!({
            "kty": "EC", "crv": "P-256", "kid": "k", "alg": "ES256",
            "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..65]),
        });
        tokens
            .take_keys(json!({ "keys": [key] }), 0)
            .expect("these are keys");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Self {
            pair,
            tokens,
            runtime: runtime.expect("a runtime without IO"),
        }
    }

    fn owner(&self, token: &str) -> Option<String> {
        let caller = self.runtime.block_on(self.tokens.caller(token, 1));
        caller.map(|caller| caller.owner)
    }
}

thread_local! {
    static PROVIDER: Provider = Provider::new();
}

/// A token as it is, and claims as the provider might sign them.
pub fn jwt(data: &[u8]) {
    let data = &data[..data.len().min(BYTES_MAX)];
    PROVIDER.with(|provider| {
        let raw = String::from_utf8_lossy(data);
        assert_eq!(provider.owner(&raw), None, "nobody signed that");
        let header = BASE64.encode(r#"{"alg":"ES256","kid":"k"}"#);
        let message = format!("{header}.{}", BASE64.encode(data));
        let signature = provider.pair.sign(&SystemRandom::new(), message.as_bytes());
        let signature = BASE64.encode(signature.expect("a key can sign"));
        let Some(owner) = provider.owner(&format!("{message}.{signature}")) else {
            return;
        };
        let claims: Value = serde_json::from_slice(data).expect("accepted claims are JSON");
        let name = claims["sub"]
            .as_str()
            .expect("accepted claims have a subject");
        assert_eq!(owner, format!("oidc:{name}"));
        assert!(!claims["iss"].is_null() && !claims["aud"].is_null() && !claims["exp"].is_null());
    });
}

/// A template that looks at everything a request can put into it.
const TEMPLATE: &str = r#"{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{%- for message in messages %}<|{{ message.role }}|>
{%- if message.content is string %}{{ message.content.strip() }}
{%- else %}{% for part in message.content or [] %}{{ part.text | default('') | trim }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}
{%- if '</think>' in (message.content or '') | string %}{{ (message.content | string).split('</think>')[-1].lstrip('\n') }}{% endif %}
{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- if reasoning_effort %}{{ reasoning_effort | upper }}{% endif %}{{ documents | length if documents else '' }}"#;

/// Messages, tools and variables of a chat template. It renders or says why not, within its limits.
pub fn template(data: &[u8]) {
    thread_local! {
        static COMPILED: ChatTemplate =
            ChatTemplate::new(TEMPLATE, Map::new()).expect("the template is sound");
    }
    let data = &data[..data.len().min(BYTES_MAX)];
    let Ok(Value::Object(input)) = serde_json::from_slice(data) else {
        return;
    };
    let list = |name: &str| input.get(name).and_then(Value::as_array).cloned();
    let (messages, tools) = (list("messages").unwrap_or_default(), list("tools"));
    let extra = input.get("extra").and_then(Value::as_object).cloned();
    COMPILED.with(|compiled| {
        let rendered = compiled.render(
            &messages,
            tools.as_deref(),
            true,
            &extra.unwrap_or_default(),
        );
        if let Err(error) = rendered {
            assert!(!error.to_string().is_empty());
        }
    });
}

/// A folder of this thread for files that have to lie on a disk.
fn with_folder(work: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().expect("a folder can be made");
    }
    FOLDER.with(|folder| work(folder.path()));
}

/// A model in one file: metadata, tokenizer, template, and the weights that its metadata calls for.
pub fn gguf(data: &[u8]) {
    let data = &data[..data.len().min(4 * BYTES_MAX)];
    with_folder(|folder| {
        let path = folder.join("model.gguf");
        std::fs::write(&path, data).expect("the file can be written");
        if let Ok(model) = ModelFolder::open(&path) {
            read_all(model.tensors(), model.config());
        }
    });
}

/// A SKILL.md, and the archive of a skill.
pub fn skill(data: &[u8]) {
    let data = &data[..data.len().min(4 * BYTES_MAX)];
    let main = SkillFile {
        path: "SKILL.md".to_owned(),
        content: data.to_vec(),
    };
    taken(None, vec![main]);
    if let Ok((folder, files)) = skill_tar::read(data) {
        taken(folder.as_deref(), files);
    }
}

/// What is taken as a skill keeps the limits and comes back from its own archive.
fn taken(folder: Option<&str>, files: Vec<SkillFile>) {
    let skill = match SkillFolder::new(folder, files) {
        Ok(skill) => skill,
        Err(refusal) => return assert!(!refusal.to_string().is_empty()),
    };
    let name = &skill.header().name;
    assert!(!name.is_empty() && name.len() <= 64, "{name}");
    let count = skill.header().description.chars().count();
    assert!((1..=1_024).contains(&count), "{count} characters");
    assert!(skill.bytes() <= SKILL_BYTES_MAX as u64);
    assert!(skill.main().ends_with(skill.body()));
    if let Ok(findings) = scan(&skill) {
        assert!(findings.len() <= 50);
    }
    let tar = skill_tar::write(name, skill.files()).expect("an archive");
    let (folder, files) = skill_tar::read(&tar).expect("its own archive");
    let again = SkillFolder::new(folder.as_deref(), files).expect("the same skill");
    assert_eq!(again.digest(), skill.digest());
}

/// Weights of a folder, and an adapter from outside.
pub fn safetensors(data: &[u8]) {
    let data = &data[..data.len().min(4 * BYTES_MAX)];
    with_folder(|folder| {
        std::fs::write(folder.join("model.safetensors"), data).expect("the file can be written");
        if let Ok(files) = TensorFiles::open(folder) {
            read_all(&files, &SMALL);
        }
    });
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
        "target_modules": ["q_proj", "v_proj"], "bias": "none",
    });
    let files = |name: &str| match name {
        peft::CONFIG_FILE => Some(config.to_string().into_bytes()),
        peft::WEIGHTS_FILE => Some(data.to_vec()),
        _ => None,
    };
    if let Ok(adapter) = peft::load(&files, &SMALL) {
        assert_eq!(adapter.config.rank(), 2);
        assert!(
            adapter
                .to_tensors()
                .iter()
                .all(|t| t.data.iter().all(|x| x.is_finite()))
        );
    }
}

/// A model small enough for made-up files to fit it.
static SMALL: LazyLock<ModelConfig> = LazyLock::new(|| {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 32,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu",
    });
    ModelConfig::from_json(config.to_string().as_bytes(), "small").expect("it is sound")
});

fn read_all(tensors: &dyn TensorSource, config: &ModelConfig) {
    let (hidden, layers) = (config.hidden, config.layers.min(2));
    let mut wanted = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![config.vocab, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        wanted.push((name("input_layernorm"), vec![hidden]));
        wanted.push((name("mlp.down_proj"), vec![hidden, config.ffn]));
    }
    for (name, shape) in wanted {
        // Sizes that no file of this length can hold are not worth a try.
        if shape.iter().product::<usize>() > 1 << 20 {
            continue;
        }
        if let Ok(data) = tensors.tensor(&name, &shape) {
            assert_eq!(data.len(), shape.iter().product::<usize>(), "{name}");
        }
    }
}

/// What a model says, in one piece and in many, is parsed the same; and nothing gets lost.
pub fn tool_calls(data: &[u8]) {
    let Some((mode, text)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(&text[..text.len().min(BYTES_MAX)]);
    let output_format = OutputFormat {
        calls: [
            None,
            Some(CallStyle::Tags),
            Some(CallStyle::Json),
            Some(CallStyle::Parameters),
        ][usize::from(mode % 4)],
        reasoning: [Reasoning::Never, Reasoning::Maybe, Reasoning::Open][usize::from(mode / 4 % 3)],
        single: mode & 0x80 != 0,
        held: mode & 0x40 != 0,
    };
    let whole = ParsedOutput::of(&text, output_format);
    let mut parser = OutputParser::new(output_format);
    let mut parsed = ParsedOutput::default();
    for (at, c) in text.char_indices() {
        parsed.add(parser.push(&text[at..at + c.len_utf8()]));
    }
    parsed.add(parser.finish());
    assert_eq!(parsed, whole, "in pieces and as a whole");
    // Those that a grammar holds are told before they are whole.
    for call in whole.calls.iter().filter(|_| !output_format.held) {
        let arguments: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
        assert!(arguments.is_object() && !call.name.is_empty());
    }
    if output_format.calls.is_none() && output_format.reasoning == Reasoning::Never {
        assert_eq!(whole.content, text, "without calls all is content");
    }
    ParsedOutput::meaning(&text);
    spans(&text, output_format);
}

/// Told apart into calls and the rest, nothing gets lost either, and a call is what is told as one.
fn spans(text: &str, output_format: OutputFormat) {
    let mut parser = OutputParser::new(output_format);
    let mut spans = Vec::new();
    for (at, c) in text.char_indices() {
        spans.extend(parser.push_spans(&text[at..at + c.len_utf8()]));
    }
    spans.extend(parser.finish_spans());
    let all: String = spans.iter().map(Span::text).collect();
    assert_eq!(all, text, "spans are the text");
    let said: String = spans
        .iter()
        .filter(|span| matches!(span, Span::Text(_)))
        .map(Span::text)
        .collect();
    let calls = ParsedOutput::of(text, output_format).calls.len();
    assert!(parser.whole_calls() <= calls, "only what is told is a call");
    if output_format.calls.is_none() {
        assert_eq!(said, text, "without calls all is text");
    }
}
