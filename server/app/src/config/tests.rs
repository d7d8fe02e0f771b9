use super::*;

fn with_file(text: &str) -> Result<Config, ConfigError> {
    Config::load(&Sources {
        file: Some((text.to_owned(), "my.toml".to_owned())),
        ..Sources::default()
    })
}

fn with_env(name: &str, value: &str) -> Result<Config, ConfigError> {
    Config::load(&Sources {
        env: vec![(name.to_owned(), value.to_owned())],
        ..Sources::default()
    })
}

#[cfg(unix)]
#[test]
fn variables_that_are_no_text_stop_nothing_unless_they_are_ours() {
    use std::os::unix::ffi::OsStringExt;
    let odd = || OsString::from_vec(vec![0xff]);
    let plain = |text: &str| OsString::from(text);
    let others = [
        (odd(), plain("x")),
        (plain("LS_COLORS"), odd()),
        (plain("HONE__HTTP__BIND"), plain("127.0.0.1:1")),
    ];
    let kept = environment(others.into_iter()).expect("they are not ours");
    assert_eq!(
        kept,
        [("HONE__HTTP__BIND".to_owned(), "127.0.0.1:1".to_owned())]
    );
    let ours = [(plain("HONE__HTTP__BIND"), odd())];
    let refused = environment(ours.into_iter()).expect_err("it means something");
    assert!(refused.to_string().contains("HONE__HTTP__BIND"));
}

#[test]
fn the_defaults_are_whole_and_valid() {
    let config = Config::load(&Sources::default()).expect("the defaults are valid");
    assert_eq!(config.http.bind, "127.0.0.1:8080");
    assert!(config.judge.model.is_none());
}

#[test]
fn the_built_in_model_has_settings_of_its_own_under_those_of_a_file() {
    let loaded = with_file("").expect("the defaults are valid");
    assert_eq!(loaded.train.method, hone_train::Method::Combined);
    assert_eq!(
        loaded.train.learner.hint_form,
        hone_train::DistillForm::Rehearsed
    );
    let own = with_file("[train.learner]\nlr = 0.5").expect("valid");
    assert_eq!(own.train.learner.lr, 0.5);
    let real = with_file("[model]\npath = \"some/folder\"").expect("valid");
    assert_eq!(
        real.train.learner.hint_form,
        hone_train::DistillForm::Context
    );
    assert_eq!(real.train.method, hone_train::Method::Combined);
    assert!(real.model.rehearsal_prompts.is_empty());
    let mut other = Config::load(&Sources::default()).expect("the defaults are valid");
    other.train.batch_turns = 17;
    let named = other.with(("[judge.model]\nname = \"slow\"", "mine.toml"));
    let judge = named.expect("valid").judge.model.expect("a table");
    assert_eq!((judge.name.as_str(), judge.votes), ("slow", 3));
    let laid = other.with(("[train]\nmethod = \"binary_reward\"", "mine.toml"));
    let laid = laid.expect("valid");
    assert_eq!(laid.train.batch_turns, 17);
    assert_eq!(laid.train.method, hone_train::Method::BinaryReward);
    assert_eq!(laid.train.learner.lr, loaded.train.learner.lr);
    let wrong = other
        .with(("[train]\nmethods = 1", "mine.toml"))
        .expect_err("no such key");
    assert!(wrong.to_string().contains("mine.toml"), "{wrong}");
}

#[test]
fn every_default_key_has_a_comment_before_it() {
    let mut commented = false;
    for line in DEFAULTS.lines() {
        let line = line.trim();
        let is_key = line.contains(" = ") && !line.starts_with(['#', '"']);
        // Keys that belong together share one comment.
        commented = line.starts_with('#') || (commented && is_key);
        assert!(commented || !is_key, "no comment before {line:?}");
    }
}

#[test]
fn later_layers_win() {
    let config = Config::load(&Sources {
        file: Some((
            "[http]\nbind = \"127.0.0.1:1\"\nmessages_max = 7\nchoices_max = 3".to_owned(),
            "my.toml".to_owned(),
        )),
        env: vec![
            ("HONE__HTTP__BIND".to_owned(), "127.0.0.1:2".to_owned()),
            ("HONE__HTTP__MESSAGES_MAX".to_owned(), "8".to_owned()),
            ("HONE__LOOPS".to_owned(), "serve,collect".to_owned()),
            ("PATH".to_owned(), "/bin".to_owned()),
        ],
        flags: vec![(
            "http.bind".to_owned(),
            Value::String("localhost:3".to_owned()),
        )],
    })
    .expect("all layers are valid");
    assert_eq!(config.http.bind, "localhost:3");
    assert_eq!(config.http.address().expect("an address").port(), 3);
    assert_eq!((config.http.messages_max, config.http.choices_max), (8, 3));
    assert_eq!(config.loops, [Loop::Serve, Loop::Collect]);
}

#[test]
fn what_is_wrong_is_named() {
    let rows: &[(Result<Config, ConfigError>, &[&str])] = &[
        (
            with_file("[http]\nbimd = \"x\""),
            &["my.toml", "http.bimd", "http.bind"],
        ),
        (
            with_file("[htpp]\nbind = \"x\""),
            &["unknown key htpp", "did you mean http"],
        ),
        (
            with_file("[http]\nmessages_max = \"many\""),
            &["http.messages_max", "integer", "string"],
        ),
        (with_file("[http\n"), &["my.toml", "not valid TOML"]),
        (
            with_file("loops = [\"sing\"]"),
            &[
                "my.toml: loops[0] must be serve, collect, judge, train, memory or rollout, not \"sing\"",
            ],
        ),
        (
            with_env("HONE__MODEL__ENGINE", "nul"),
            &["HONE__MODEL__ENGINE: model.engine must be builtin or null, not \"nul\""],
        ),
        (
            with_file("[people]\npublic_url = \"hone.example\""),
            &["people.public_url", "https://"],
        ),
        (
            with_file("[limits.key]\nstreams_max = -1"),
            &[
                "my.toml: limits.key.streams_max must be a whole number",
                "not -1",
            ],
        ),
        (
            with_file("[judge.model]\nurl = \"http://x\"\nvotez = 3"),
            &["judge.model.votez", "judge.model.votes"],
        ),
        (
            with_env("HONE__HTTP__BINDD", "x"),
            &["HONE__HTTP__BINDD", "HONE__HTTP__BIND"],
        ),
        (
            with_env("HONE__HTTP__MESSAGES_MAX", "many"),
            &["HONE__HTTP__MESSAGES_MAX", "integer"],
        ),
    ];
    for (result, parts) in rows {
        let message = result.as_ref().expect_err("it is wrong").to_string();
        for part in *parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }
}

#[test]
fn a_value_that_does_not_fit_is_told_with_who_set_it() {
    for (wrong, told) in [
        (
            with_file("loops = []"),
            "my.toml: loops must name at least one",
        ),
        (
            with_file("[http]\nmessages_max = 0"),
            "my.toml: http.messages_max must be at least 1",
        ),
        (
            with_file("[http]\nbind = \"here\""),
            "my.toml: http.bind is \"here\", which is not an address with a port, such as 127.0.0.1:8080",
        ),
        (
            with_env("HONE__HTTP__BIND", "here"),
            "HONE__HTTP__BIND: http.bind is \"here\"",
        ),
        (
            with_file("[[http.keys]]\nowner = \"a\"\nsha256 = \"zz\""),
            "my.toml: http.keys[0].sha256",
        ),
        // What stands in the file is not what is out of range.
        (
            with_file("[train]\nbatch_turns = 3"),
            "my.toml: train.batch_turns_min (8) must be between 1 and train.batch_turns (3)",
        ),
    ] {
        let wrong = wrong.expect_err(told).to_string();
        assert!(wrong.starts_with(told), "{wrong}");
    }
}

#[test]
fn an_origin_is_written_as_browsers_send_it() {
    let with = |origin: &str| with_file(&format!("[http]\norigins_allowed = [{origin:?}]"));
    for sent in [
        "https://app.example",
        "http://127.0.0.1:5173",
        "http://[::1]:3000",
        "https://xn--bcher-kva.example:8443",
        "tauri://localhost",
        "chrome-extension://abcdef",
    ] {
        assert!(with(sent).is_ok(), "{sent}");
    }
    for never_sent in [
        "*",
        "null",
        "",
        "app.example",
        "https://",
        "https://*.app.example",
        "https://app.example/",
        "https://app.example/chat",
        "https://app.example:443",
        "https://App.example",
        "tauri://localhost/x",
        "Tauri://localhost",
        "HTTPS://app.example",
    ] {
        let error = with(never_sent).expect_err(never_sent).to_string();
        assert!(error.contains("http.origins_allowed has"), "{error}");
    }
}

#[test]
fn a_wrong_table_in_a_list_is_told_with_its_place() {
    for (text, told) in [
        (
            "[[http.keys]]\nowner = \"a\"",
            "my.toml: http.keys[0].sha256 is missing",
        ),
        (
            "[[http.keys]]\nowner = 7\nsha256 = \"zz\"",
            "my.toml: http.keys[0].owner must be a string, not 7",
        ),
    ] {
        let error = with_file(text).expect_err("it is wrong");
        assert_eq!(error.to_string(), told);
    }
}

#[test]
fn an_optional_table_brings_its_own_defaults() {
    let config = with_file("[judge.model]\nurl = \"http://judge/v1\"").expect("it is valid");
    let model = config.judge.model.expect("it was named");
    assert_eq!((model.url.as_str(), model.votes), ("http://judge/v1", 3));
    let config = with_env("HONE__JUDGE__MODEL__VOTES", "5").expect("it is valid");
    assert_eq!(config.judge.model.map(|m| m.votes), Some(5));
    let config = with_file("[judge.certificate]\nexecute = { url = \"http://checks\" }");
    let execute = config.expect("it is valid").judge.certificate.execute;
    let execute = execute.expect("it was named");
    assert_eq!(
        (&*execute.url, execute.deadline_ms),
        ("http://checks", 15_000)
    );
    let config = with_env("HONE__JUDGE__CERTIFICATE__EXECUTE__SECRET_ENV", "SECRET");
    let execute = config.expect("it is valid").judge.certificate.execute;
    assert_eq!(execute.map(|e| e.secret_env).as_deref(), Some("SECRET"));
}

#[test]
fn what_is_printed_can_be_read_again_and_hides_keys() {
    let key = "ab".repeat(32);
    let text = format!("[[http.keys]]\nowner = \"alice\"\nsha256 = \"{key}\"\nadmin = true");
    let config = with_file(&text).expect("it is valid");
    let printed = config.print().expect("it prints");
    assert!(!printed.contains(&key) && printed.contains("alice"));
    let default = Config::load(&Sources::default()).expect("valid");
    let again = with_file(&default.print().expect("it prints")).expect("it is valid");
    assert_eq!(again.print(), default.print());
}

#[test]
fn no_everyday_prompt_is_a_question_that_knowledge_is_measured_with() {
    let config = Config::load(&Sources::default()).expect("the defaults are valid");
    let grammar = hone_starter::grammar::Grammar::new();
    let everyday = config.model.rehearsal_prompts.iter();
    let everyday: Vec<String> = everyday.map(|prompt| prompt.to_lowercase()).collect();
    let held_out = grammar.held_out_questions(1, usize::MAX);
    let both: Vec<_> = held_out
        .iter()
        .filter(|question| everyday.contains(&question.text.to_lowercase()))
        .map(|question| (&question.text, &grammar.fact(question.fact).asks))
        .collect();
    assert!(both.is_empty(), "other phrasings: {both:#?}");
}

#[test]
fn keys_and_values_are_kept_as_the_matrices_are() {
    use super::sections::KeyValues;
    use hone_kernels::WeightFormat;
    use hone_nn::{KvFormat, Model, Weights};
    let model = |format| {
        let shape = crate::shapes::starter_shape();
        let weights = Weights::random(&shape, 1).into_format(format);
        Model::new(shape, weights)
    };
    let [wide, half, codes] = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8].map(model);
    for (choice, model, on_device, wanted) in [
        (KeyValues::Auto, &wide, false, KvFormat::F32),
        (KeyValues::Auto, &half, false, KvFormat::F16),
        (KeyValues::Auto, &codes, false, KvFormat::F16),
        (KeyValues::Auto, &half, true, KvFormat::F32),
        (KeyValues::F32, &half, false, KvFormat::F32),
        (KeyValues::F16, &wide, false, KvFormat::F16),
    ] {
        assert_eq!(choice.format(model, on_device), Ok(wanted), "{choice:?}");
    }
    let on_device = KeyValues::F16
        .format(&half, true)
        .expect_err("it has f32 only");
    assert!(on_device.contains("model.kv"), "{on_device}");
}

#[test]
fn products_come_to_what_the_machine_has() {
    use hone_kernels::ComputeType;
    let quickest = ComputeType::Int8;
    let taken = |products: Products| products.arithmetic(quickest, false);
    assert_eq!(taken(Products::Auto), Ok(quickest));
    assert_eq!(taken(Products::F32), Ok(ComputeType::F32));
    assert_eq!(taken(Products::Int8), Ok(ComputeType::Int8));
    for products in [Products::Auto, Products::F32] {
        let on_device = products.arithmetic(quickest, true);
        assert_eq!(on_device, Ok(ComputeType::F32));
    }
    let others = [
        (Products::Bf16, ComputeType::Bf16, "bf16", "AVX512-BF16"),
        (Products::Amx, ComputeType::Amx, "amx", "AMX"),
        (Products::Int8, ComputeType::Int8, "int8", ""),
    ];
    for (products, arithmetic, name, needs) in others {
        let on_device = products.arithmetic(quickest, true);
        let on_device = on_device.expect_err("it has f32 only");
        let named = format!("model.arithmetic is \"{name}\"");
        assert!(on_device.contains(&named), "{on_device}");
        match taken(products) {
            Ok(taken) => assert!(taken == arithmetic && arithmetic.supported()),
            Err(why) => assert!(!arithmetic.supported() && why.contains(needs), "{why}"),
        }
    }
}

#[test]
fn everybody_shows_who_they_are_where_the_page_has_another_name() {
    for (url, wanted) in [
        ("", false),
        ("http://localhost:8080", false),
        ("http://hone.localhost", false),
        ("https://127.0.0.1:8443/", false),
        ("http://[::1]:8080", false),
        ("https://hone.example", true),
        ("http://192.168.1.20:8080", true),
        ("https://localhost.example", true),
    ] {
        let mut people = Config::load(&Sources::default()).expect("valid").people;
        assert!(!people.asks_everybody());
        url.clone_into(&mut people.public_url);
        assert_eq!(people.validate(), Ok(()), "{url}");
        assert_eq!(people.asks_everybody(), wanted, "{url}");
        people.sign_in = true;
        assert!(people.asks_everybody());
    }
}
