"""Wrong uses of the class Graph, its attributes, its calls and its blocks."""

GRAPH = {
    "InvalidOption": """
        tg.Graph(model)
        tg.Graph(debug_level=1)
        tg.Graph(debug_v_level=9)
        tg.Graph(debug_v_level="1")
        tg.Graph(debug_ranks="all")
        tg.Graph(debug_max_py_stack_depth=-1)
        Step(debug_v_level=None)
        graph.debug("all")
        graph.debug(4)
        graph.debug(1.5)
        graph.debug(True)
        graph.debug(None)
        graph.debug(0, None, 2, True, False, None, 1)
        graph.debug(0, rank=1)
        graph.debug(0, ranks=[0.5])
        graph.debug(0, ranks="0")
        graph.debug(0, ranks={"a": 1})
        graph.debug(0, max_py_stack_depth="deep")
        graph.debug(0, max_py_stack_depth=None)
        graph.debug(0, only_user_py_stack="yes")
        graph.debug(0, op_repr_with_py_stack="yes")
        graph.debug(0, mode="on")
        graph.report(memory=x)
        graph(x); graph.report(memory=5)
        graph.report(x)
        graph.full_text(0)
        graph.full_text("all")
        graph.tree(-1)
        graph.tree("all")
        graph.report(memry=[x])
        graph.sync(x)
        graph.close(True)
        graph.state_dict({})
        graph.load_state_dict(graph.state_dict(), strickt=False)
        graph.load_state_dict(graph.state_dict(), strict="no")
        graph.load_state_dict()
        graph.set_grad_scaler("dynamic")
        graph.set_grad_scaler(2.0**16)
        graph.set_grad_scaler(True)
        graph.set_grad_scaler(torch.amp.GradScaler)
        graph.set_grad_scaler(scaler=None)
        evaluation.set_grad_scaler(tg.amp.StaticGradScaler(2.0)); evaluation(x)
        tg.Graph.trace(model)
        tg.Graph.trace(None)
        tg.Graph.trace(Step)
        tg.Graph.trace(model.forward)
        tg.Graph.trace()
        tg.Graph.trace(func=3)
        tg.Graph.with_dynamic_input_shape(size=0)
        tg.Graph.with_dynamic_input_shape(size="10")
        tg.Graph.with_dynamic_input_shape(size=None)
        tg.Graph.with_dynamic_input_shape(10)
        tg.Graph.with_dynamic_input_shape(sizes=10)
        tg.Graph.with_dynamic_input_shape(enable_shared="no")
        tg.Graph.with_dynamic_input_shape()(Step)
        tg.Graph.with_dynamic_input_shape()(Step.build)
        tg.Graph.with_dynamic_input_shape(Step.__init__)
        tg.config.with_dynamic_input_shape()(None)
        block.activation_checkpointing = 1
        block.activation_checkpointing = "yes"
        block.activation_checkpointing = x
        block.debug(7)
        block.debug("on")
        block.debug(0, rank=0)
        block.debug(0, ranks=None, mode=True)
        block.child(3)
        block.tensor(None)
        block.set_stage("0")
        block.set_stage(-1, 0)
        block.set_stage(0, "cuda:0")
        block.set_stage(placement="cuda:0")
        block.stage_id = "first"
    """,
    "NotSupported": """
        tg.Graph.with_dynamic_input_shape(enable_shared=False)
        copy.copy(graph)
        copy.deepcopy(graph)
        pickle.dumps(graph)
        pickle.dumps(tg.step(lambda x: x))
        copy.copy(tg.step(lambda x: x))
    """,
    "UnknownName": """
        graph.train()
        graph.train(False)
        graph.eval()
        graph.parameters()
        graph.named_parameters()
        graph.buffers()
        graph.modules()
        graph.to("cuda")
        graph.cuda()
        graph.cpu()
        graph.half()
        graph.zero_grad()
        graph.requires_grad_(False)
        graph.apply(print)
        graph.forward(x)
        graph.step()
        graph.backward()
        graph.compile()
        graph.add_optimiser(sgd)
        graph.set_gradscaler(None)
        graph.lodd_state_dict({})
        graph.reports()
        graph.optimizer
        graph.optimizers
        graph.mode1
        graph._compile(x)
        graph.build_graph(x)
        graph.finish_compile_and_init_runtime()
        graph.enable_shared()
        graph.share_from(evaluation)
        graph.runtime_state_dict()
        graph.load_runtime_state_dict({})
        graph.enable_save_runtime_state_dict()
        graph._full_graph_proto
        graph.register_forward_hook(print)
        graph.name = "mine"
        graph.training = True
        graph.config = {}
        graph.config = tg.GraphConfig()
        graph.is_compiled = False
        graph.program = None
        graph.report = "no"
        graph.debug = True
        graph.state_dict = {}
        graph.last_lr = 0.1
        graph._runner = {}
        graph._dry_run = 0
        graph._block_tree = None
        graph._modules = {}
        del graph.config
        del graph._runner
        del graph.name
        graph.model.activation_checkpointing = True
        graph.model[0].stage_id = 1
        graph.model.to(GraphModule).activation_checkpoint = True
        block.checkpointing = True
        block.name = "other"
        block.origin = model
        block.type = "MODULE"
        block.path = "other"
        block.set_stage = 1
        block.debug = True
        block.parameters()
        block.weight
        block.child("no_such")
        block.tensor("no_such")
        block.tensor("wieght")
    """,
    "ModuleNameTaken": """
        graph.config = nn.Linear(2, 2)
        graph.build = nn.Linear(2, 2)
        graph.name = nn.Linear(2, 2)
        graph._runner = nn.Linear(2, 2)
        setattr(graph, "a.b", nn.Linear(2, 2))
        setattr(graph, "", nn.Linear(2, 2))
        setattr(graph, "_train", nn.Linear(2, 2))
        graph.number = 1; graph.number = nn.Linear(2, 2)
    """,
    "TensorAttribute": """
        graph.scale = torch.ones(1)
        graph.weight = nn.Parameter(torch.ones(1))
        graph.loss = model(x).sum()
    """,
    "OptimizerAttribute": """
        graph.optimizer = sgd
        graph.opt = tg.optim.Lion(model.parameters())
    """,
    "NestedGraph": """
        graph.inner = evaluation
        graph.inner = graph
        tg.Graph.trace(lambda x: evaluation(x))(x)
        tg.step(lambda x: graph(x))(x)
    """,
    "GraphNotInitialized": """
        object.__new__(Step)(x)
        Step.__new__(Step).model
        setattr(object.__new__(Step), "model", model)
        object.__new__(Step).config
        repr(object.__new__(Step))
        object.__new__(Step).report()
        object.__new__(Step).add_optimizer(sgd)
        object.__new__(Step).set_grad_scaler(None)
        object.__new__(Step).debug(1)
        object.__new__(Step).state_dict()
        object.__new__(Step).close()
        object.__new__(Step).training
    """,
    "NotCompiled": """
        graph.program
    """,
    "UnsupportedInput": """
        graph()
        graph(x, x)
        graph(y=x)
        graph(x, x=x)
        graph(x, mask=None)
        graph(x=x, X=x)
        graph.check()
        graph.check(x, x)
        graph(x); graph.report(memory=[x, x])
        graph(model(x))
        graph(torch.ones(8, 4).to_sparse())
        graph(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))
        graph.config.set_shape_buckets(0, [8]); graph()
        graph.config.set_shape_buckets(0, [8]); graph(x, x)
        graph.config.set_shape_buckets(0, [8]); graph(x, X=x)
        tg.train_step(model, F.mse_loss, sgd)()
        tg.train_step(model, F.mse_loss, sgd)(x)
        tg.train_step(model, F.mse_loss, sgd)(x=x, y=x)
    """,
    "GradPresent": """
        model(x).sum().backward(); graph.check(x)
        model(x).sum().backward(); graph.profile(x)
    """,
}
"""Error -> wrong uses of a Graph, one a line."""
